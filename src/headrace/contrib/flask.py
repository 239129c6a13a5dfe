"""Flask: an application context around each job, and the application among the extensions of the site.

Owns one middleware for each application. Needs Flask, which the site brings.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from flask import Flask

    from headrace.app import Headrace
    from headrace.context import CurrentJob

# The newest site of each application: tests make one after the other.
_sites: WeakKeyDictionary[Headrace, Flask] = WeakKeyDictionary()


def init_app(site: Flask, app: Headrace) -> None:
    """Run each start of the application's jobs in an application context of the site.

    ``current_app`` and ``g`` work in jobs. ``teardown_appcontext`` functions run at the end of each start, with its
    exception; so extensions such as Flask-SQLAlchemy give their connections back. ``site.extensions["headrace"]`` is
    the application, so ``headrace worker 'module:create_app()'`` finds it. A second site replaces the first one. Cost:
    no round trip.
    """
    if app not in _sites:

        @app.middleware
        @contextmanager
        def in_context(job: CurrentJob) -> Generator[None]:  # noqa: ARG001 # pyright: ignore[reportUnusedFunction]
            with _sites[app].app_context():
                yield

    _sites[app] = site
    site.extensions["headrace"] = app
