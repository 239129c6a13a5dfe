"""The interpreter of a page, in a process of its own: it runs the page's blocks, one after the other, in one namespace.

Its first stream is a socket to the test, over which it reads one JSON string a line, and answers with what that printed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import sys
import traceback
from typing import Any

FAULT = "the block raised"


def main() -> int:
    """Run blocks until the test closes its end; the exit code."""
    link = socket.socket(fileno=os.dup(1)).makefile("rw")
    # What the block's own processes print is no answer.
    os.dup2(2, 1)
    # As in an interpreter that is given its code by ``-c``.
    sys.path[:] = ["", *sys.path[1:]]
    sys.argv[:] = ["-c"]
    names: dict[str, Any] = {"__name__": "page"}
    for line in link:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            try:
                exec(compile(json.loads(line), "page", "exec"), names)
            except BaseException:  # noqa: BLE001 - told to the test, which fails
                traceback.print_exc(file=said)
                said.write(FAULT)
        print(json.dumps(said.getvalue()), file=link, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
