"""The table of the outbox, and the permissions of the dashboard. Jobs are no models: they live in the store."""

# Django has no types.
# pyright: basic
from __future__ import annotations

from typing import ClassVar

from django.db import models


class Outbox(models.Model):
    """An envelope that waits to be stored; ``headrace.contrib.outbox`` writes and reads the table."""

    id = models.CharField(max_length=32, primary_key=True)
    envelope = models.BinaryField()
    tries = models.IntegerField()
    error = models.TextField(null=True)

    class Meta:
        """No page of Django's admin: the permissions are those of the dashboard."""

        db_table = "headrace_outbox"
        default_permissions = ()
        permissions: ClassVar[list[tuple[str, str]]] = [
            ("view", "Can look at the jobs of Headrace"),
            ("operate", "Can operate the jobs of Headrace"),
        ]
