"""A program of many threads that read one value, which is absent. It says when it computes, and is told what to return."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from headrace import Headrace
from headrace.cache import listener, values
from tests.deadline import eventually


def main() -> int:
    values.FIRST = listener.PROBE_TIMEOUT = 20.0
    path, url, wait, threads = sys.argv[1], sys.argv[2], float(sys.argv[3]) or None, int(sys.argv[4])
    app, lock = Headrace(url, timeout=20.0), threading.Lock()
    made: list[int] = []
    found: list[str] = []

    def make() -> str:
        with lock:
            made.append(1)
        print("begun", flush=True)
        word = told.readline().strip()
        if word == "fail":
            # Who comes after a failure computes again.
            eventually(lambda: waiting() == threads - 1, 20)
            raise LookupError("no row")
        return word

    def waiting() -> int:
        return sum(len(one.ended._callbacks) for one in list(app.cache._steps._fills._current.values()))

    def read() -> None:
        try:
            found.append(app.cache.get("a", make=make, wait=wait))
        except LookupError as error:
            found.append(str(error))

    with Path(path).open(encoding="utf-8") as told:
        app.cache.get("warm")
        print("ready", flush=True)
        told.readline()
        crowd = [threading.Thread(target=read) for _ in range(threads)]
        for thread in crowd:
            thread.start()
        for thread in crowd:
            thread.join()
    print(json.dumps([len(made), found]), flush=True)
    app.close()
    return 0
