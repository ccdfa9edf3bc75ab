"""A backend for Django's Tasks: a task's ORM runs in the transaction that completes its job.

    TASKS = {"default": {"BACKEND": "idemq.django.IdemqBackend", "QUEUES": ["default", "mail"]}}

Requires Django 6, or Django 5.2 with the package django-tasks.  The manual is doc/usage/django.md.
"""

from ._backend import IdemqBackend, IdemqTask
from ._migrations import IdemqQueue
from ._worker import IdemqContext, drain

__all__ = ["IdemqBackend", "IdemqContext", "IdemqQueue", "IdemqTask", "drain"]
