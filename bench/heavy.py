"""An application that takes about 100 MB once imported: small Python objects, as parsed configuration or a
model has.

The same as ``bench.app`` otherwise. Imported alone it is the reference: one process with this
application.
"""

from __future__ import annotations

from bench.app import app, bulk

__all__ = ["TABLE", "app", "bulk"]

TABLE = {number: (float(number), f"row {number}") for number in range(430_000)}
