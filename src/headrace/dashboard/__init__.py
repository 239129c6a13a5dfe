"""The dashboard: ``headrace dashboard``, or ``Dashboard(app, authorize=...)`` mounted in an ASGI application.

Needs ``pip install 'headrace[dashboard]'``. Reads what the store holds in bounded pieces; changes it by the verbs of
the application only.
"""

from __future__ import annotations

from headrace.dashboard.mounting import Dashboard
from headrace.dashboard.visitors import Visitor

__all__ = ["Dashboard", "Visitor"]
