"""The settings of the application of django.pl."""

import os

import django
from psycopg.conninfo import conninfo_to_dict

_dsn = conninfo_to_dict(os.environ["IDEMQ_DSN"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql", "NAME": _dsn["dbname"], "USER": _dsn["user"], "HOST": _dsn["host"], "PORT": _dsn.get("port", ""),
        "OPTIONS": {"connect_timeout": 60}, "TEST": {"NAME": _dsn["dbname"] + "_test"},
    },
}  # fmt: skip
TASKS = {
    "default": {
        "BACKEND": "idemq.django.IdemqBackend", "QUEUES": ["mail", "slow"],
        "OPTIONS": {"queues": {"slow": {"lease": "1 h", "job_timeout": "30 min"}}, "ui": "https://ui.example/"},
    },
    "other": {"BACKEND": "idemq.django.IdemqBackend", "QUEUES": ["slow"]},
}  # fmt: skip
INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages", "django.contrib.sessions", "idemq.django", "django_shop",
]  # fmt: skip
INSTALLED_APPS += os.environ.get("MORE_APPS", "").split()
if django.VERSION < (6,):
    INSTALLED_APPS.append("django_tasks")
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware", "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]  # fmt: skip
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
        "OPTIONS": {"context_processors": [f"django.{name}" for name in ("template.context_processors.request", "contrib.auth.context_processors.auth",
            "contrib.messages.context_processors.messages")]},
    },
]  # fmt: skip
ROOT_URLCONF = "django_urls"
SECRET_KEY = "for tests"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
ALLOWED_HOSTS = ["testserver"]
if log := os.environ.get("WORKER_LOG"):
    LOGGING = {
        "version": 1, "disable_existing_loggers": False, "handlers": {"file": {"class": "logging.FileHandler", "filename": log}},
        "loggers": {"idemq": {"level": "INFO", "handlers": ["file"]}},
    }  # fmt: skip
