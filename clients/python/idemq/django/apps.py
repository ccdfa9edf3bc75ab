"""The Django app, for INSTALLED_APPS: the commands, and the jobs in the admin."""

from django.apps import AppConfig


class IdemqConfig(AppConfig):
    name = "idemq.django"
    label = "idemq"
    verbose_name = "idemq"
