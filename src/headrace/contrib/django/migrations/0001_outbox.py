"""The table of the outbox, and the permissions of the dashboard."""

# Django has no types.
# pyright: basic, reportMissingTypeStubs=false
from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Outbox",
            fields=[
                ("id", models.CharField(max_length=32, primary_key=True, serialize=False)),
                ("envelope", models.BinaryField()),
                ("tries", models.IntegerField()),
                ("error", models.TextField(null=True)),
            ],
            options={
                "db_table": "headrace_outbox",
                "permissions": [
                    ("view", "Can look at the jobs of Headrace"),
                    ("operate", "Can operate the jobs of Headrace"),
                ],
                "default_permissions": (),
            },
        )
    ]
