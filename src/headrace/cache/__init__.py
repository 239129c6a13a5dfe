"""Values that are read often and changed rarely: kept in the process until the server says that they changed.

Usable on its own: ``Cache(Client(settings))``. Decides nothing that correctness depends on; a value may be gone at any
time. Who does what: ``front`` has the verbs, ``memo`` the decorator, ``listener`` is the thread that hears of changes,
``link`` its connections, ``shelf`` the local copies, ``frozen`` what makes them safe to share.
"""

from __future__ import annotations

from headrace.cache.front import ABSENT, Cache
from headrace.cache.memo import Cached
from headrace.cache.statistics import Statistics

__all__ = ["ABSENT", "Cache", "Cached", "Statistics"]
