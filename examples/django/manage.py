"""A Django project with jobs.

pip install 'penstock[django]' django-tasks
export PENSTOCK_URL=redis://localhost:6379/0
python manage.py migrate
python manage.py runserver
python manage.py penstock_worker

curl -X POST localhost:8000/orders/ada      # adds two jobs when the transaction commits
curl localhost:8000/orders                  # the orders, and what the jobs have done
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
    execute_from_command_line(sys.argv)
