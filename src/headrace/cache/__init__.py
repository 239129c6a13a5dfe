"""Values that are read often and changed rarely: kept in the process until the server says that they changed.

Usable on its own: ``Cache(Client(settings))``. Decides nothing that correctness depends on; a value may be gone at any
time. Who does what: ``app_cache`` has the verbs and ``@app.cached``, ``values`` what the verbs do,
``fill_leases`` knows who computes what, ``listener`` is the thread that hears of changes, with its
connections, and ``local_store`` has the local copies.
"""

from __future__ import annotations

from headrace.cache.app_cache import Cache, Cached, CachedOptions
from headrace.cache.local_store import Statistics
from headrace.cache.values import ABSENT

__all__ = ["ABSENT", "Cache", "Cached", "CachedOptions", "Statistics"]
