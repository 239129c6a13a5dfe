"""The settings of the shop. The last two names are all that Headrace needs."""

import os
from pathlib import Path

SECRET_KEY = os.environ.get("SECRET_KEY", "for this example only")
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "shop.views"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": Path(__file__).parent / "shop.sqlite3"},
}

INSTALLED_APPS = ["shop", "headrace.contrib.django"]
HEADRACE = {"NAMESPACE": "shop"}  # and "URL": "redis://…"
