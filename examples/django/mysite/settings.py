"""Settings of the project."""

import os
from pathlib import Path

SECRET_KEY = "only for the example"
DEBUG = True
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "mysite.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", Path(__file__).parents[1] / "db.sqlite3"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
INSTALLED_APPS = ["django_tasks", "penstock.integrations.django", "shop"]

PENSTOCK = {"URL": os.environ.get("PENSTOCK_URL", "redis://localhost:6379/0")}
# With Django 6: "penstock.integrations.django.backend.PenstockBackend", and no app "django_tasks".
TASKS = {
    "default": {
        "BACKEND": "penstock.integrations.django.backport.PenstockBackport",
        "QUEUES": ["default", "emails"],
        "OPTIONS": {"enqueue_on_commit": True},
    }
}
