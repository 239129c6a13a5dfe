"""Schedules: tasks and workflows that run at the times of a cron expression or at even intervals."""

from __future__ import annotations

from headrace.schedules.timetables import Cron as Cron
from headrace.schedules.timetables import Every as Every
