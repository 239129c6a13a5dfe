"""The application of ``bench.tick_trial``: each job adds its id to the file ``BENCH_LEDGER``."""

from __future__ import annotations

import os

from bench import set_clock

set_clock.install()

from headrace import Headrace, current_job  # noqa: E402 - scripts are loaded from here on

app = Headrace(os.environ["HEADRACE_URL"])


@app.task(result_ttl=0, max_crashes=1000)
def ticked() -> None:
    # One write to a file opened for appending: lines of several processes do not mix.
    ledger = os.open(os.environ["BENCH_LEDGER"], os.O_WRONLY | os.O_APPEND)
    os.write(ledger, f"{current_job().id}\n".encode())
    os.close(ledger)
