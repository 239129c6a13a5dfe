"""The dashboard: ``headrace dashboard``, or ``Dashboard(app, authorize=...)`` mounted in an ASGI application.

Needs ``pip install 'headrace[dashboard]'``. Reads what the store holds in bounded pieces; changes it by the verbs of
the application only.
"""

from __future__ import annotations

from headrace.errors import MissingExtra

try:
    from headrace.dashboard.mounting import Dashboard
    from headrace.dashboard.visitors import Visitor
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in ("starlette", "jinja2"):
        raise
    raise MissingExtra(f"the dashboard needs {missing}: pip install 'headrace[dashboard]'") from None

__all__ = ["Dashboard", "Visitor"]
