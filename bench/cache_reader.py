"""Reads one cached number until it is negative; says when it last returned a smaller number than each that came."""

from __future__ import annotations

import json
import sys
import time

from headrace import Headrace


def main() -> None:
    url, pause = sys.argv[1], float(sys.argv[2])
    with Headrace(url) as app:
        get, last, old, before = app.cache.get, 0, dict[int, float](), 0.0
        while not app.cache.statistics().used:
            get("number")
        print("reads", flush=True)
        while last >= 0:
            # After the call: a value that was read is old from when it is returned.
            value, now = get("number"), time.monotonic()
            if value != last and value is not None:
                old |= dict.fromkeys(range(last + 1, value + 1), before)
                last = value
            before = now
            if pause:
                time.sleep(pause)
    print(json.dumps(old))


if __name__ == "__main__":
    main()
