"""Values that are read often and changed rarely: kept in the process until the server says that they changed.

Usable on its own: ``Cache(Client(settings))``. Decides nothing that correctness depends on; a value may be gone at any
time.
"""

from __future__ import annotations

from headrace.cache.app_cache import Cache, Cached, CachedOptions
from headrace.cache.local_store import Statistics
from headrace.cache.values import ABSENT

__all__ = ["ABSENT", "Cache", "Cached", "CachedOptions", "Statistics"]
