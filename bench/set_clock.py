"""A server's clock that can be set: scripts add the microseconds in the key ``KEY`` to the time that the server tells.

For workers of a trial: their application calls :func:`install` before a script is loaded. The server looks the key up
in each script, so that a jump is felt at once, and by all. What ends by itself (``PX``) keeps to the true time.
"""

from __future__ import annotations

from typing import Any

from headrace.protocol.script import Script, load
from headrace.protocol.script_header import Header

#: Outside of every namespace.
KEY = "bench:clock"
_TIME = "now = t[1] * 1000000 + t[2] - now end"
_plain = Script.__init__


def install() -> None:
    """From now on, scripts of this process read the clock that is set."""

    def with_clock(self: Script, name: str, header: Header, text: str, places: Any) -> None:
        if header.clock and _TIME not in text:
            raise LookupError(f"script {name} does not read the clock as this module expects")
        _plain(self, name, header, text.replace(_TIME, f"{_TIME[:-4]} + (redis.call('GET', '{KEY}') or 0) end"), places)

    Script.__init__ = with_clock  # type: ignore[method-assign]
    load.cache_clear()
