"""Pages of the project."""

from django.urls import path
from shop import views

urlpatterns = [path("orders/<str:customer>", views.add), path("orders", views.listing)]
