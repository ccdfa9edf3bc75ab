"""The jobs, as a view that only the admin reads."""

from django.db import models


class Job(models.Model):
    """One row of idemq.job_list."""

    id = models.BigIntegerField(primary_key=True)
    queue = models.TextField()
    kind = models.TextField(null=True)
    status = models.TextField()
    attempt = models.IntegerField()
    max_attempts = models.IntegerField()
    enqueued_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    last_error = models.TextField(null=True)
    payload = models.JSONField(null=True)

    class Meta:
        managed = False
        db_table = '"idemq"."job_list"'
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.kind or 'job'} {self.id}"
