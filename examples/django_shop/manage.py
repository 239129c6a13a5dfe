"""The command line of the shop; ``manage.py headrace`` is the whole command line of Headrace."""

import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
execute_from_command_line(sys.argv)
