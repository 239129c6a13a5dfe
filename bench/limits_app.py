"""A task with a rate, for the benchmark of limits: each start adds its token to the file ``BENCH_TOKENS``."""

from __future__ import annotations

import os
import struct

from headrace import Headrace, Rate, current_job

app = Headrace(os.environ["HEADRACE_URL"])
rate = app.limit("rate", Rate(int(os.environ["BENCH_RATE"]), per=1))

# Opened before the fork: appends of eight bytes are whole, whichever process makes them.
_FILE = os.open(os.environ["BENCH_TOKENS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.task(limits=[rate], result_ttl=0)
def limited() -> None:
    os.write(_FILE, struct.pack("<Q", current_job().token))


def bulk(count: int) -> None:
    """Enqueue so many."""
    app.enqueue_many(limited.job() for _ in range(count))
