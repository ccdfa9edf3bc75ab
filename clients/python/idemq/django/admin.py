"""The jobs in the admin, which can only be read.  idemq-ui can also change them."""

from typing import Any

from django.contrib import admin
from django.db import connections
from django.utils.html import format_html

from ._backend import IdemqBackend
from ._tasks import task_backends
from .models import Job


def _backend() -> IdemqBackend:
    return next((each for each in task_backends.all() if isinstance(each, IdemqBackend)), None) or IdemqBackend("default", {})


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    list_display = ("id", "queue", "kind", "status", "attempt", "enqueued_at", "finished_at")
    list_filter = ("status",)
    list_per_page = 50
    ordering = ("-id",)
    show_full_result_count = False
    fields = (*(field.name for field in Job._meta.fields), "why", "in_idemq_ui")
    readonly_fields = fields

    def get_queryset(self, request: Any) -> Any:
        return super().get_queryset(request).using(_backend().database)

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    @admin.display(description="why")
    def why(self, job: Job) -> str:
        with connections[_backend().database].cursor() as cursor:
            cursor.execute("SELECT idemq.why(%s)", [job.id])
            return str(cursor.fetchone()[0])

    @admin.display(description="idemq-ui")
    def in_idemq_ui(self, job: Job) -> str:
        url = _backend().options.get("ui", "").rstrip("/")
        return format_html('<a href="{}/job/{}">{}</a>', url, job.id, job.id) if url else "-"
