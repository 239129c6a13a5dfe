"""The clock of deadlines and waits, which goes on while a test has frozen the time of its own code.

A module of its own: all layers use it, and the pure ones must not import ``time``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial

# freezegun replaces each attribute of a module that *is* ``time.monotonic``; this is another object. Where this module
# is imported while the time is frozen, freezegun has the real function.
monotonic: Callable[[], float] = partial(getattr(sys.modules.get("freezegun.api"), "real_monotonic", time.monotonic))
