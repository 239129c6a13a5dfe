"""Many clients of a cluster in one process: each enqueues a job, and another when a line comes.

Prints how often the process asked for the map, after each; at the end also what failed, and how long that took.
"""

from __future__ import annotations

import json
import sys
import time
from threading import Thread

from headrace import Headrace
from headrace.errors import HeadraceError


def main(url: str, count: int) -> None:
    apps = [Headrace(url, timeout=60) for _ in range(count)]
    failed: list[str] = []

    def enqueue(app: Headrace) -> None:
        try:
            app.by_name("tasks.add").enqueue(1)
        except HeadraceError as error:
            failed.append(str(error))

    for app in apps:
        enqueue(app)
    slots = apps[0].client.store.target.slots
    assert slots is not None
    print(json.dumps({"maps": slots.asked}), flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    threads = [Thread(target=enqueue, args=(app,)) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"maps": slots.asked, "failed": failed, "seconds": time.monotonic() - began}))
    for app in apps:
        app.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
