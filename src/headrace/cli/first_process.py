"""``python -m headrace.cli.first_process``: what the process of a worker's first image becomes when its jobs have
ended.

No person starts it by hand: it carries on what it finds in its environment.
"""

from __future__ import annotations

import os
import sys

from headrace.cli import logs
from headrace.worker.reload.pid_holder import STATE, carried_on


def main() -> int:
    """Be the anchor; the exit code of the last image."""
    environ = dict(os.environ)
    text = environ.pop(STATE, None)
    if text is None:
        print("headrace: this is a part of headrace worker, which starts it itself", file=sys.stderr)
        return 2
    anchor, form = carried_on(text, environ)
    logs.configure(form.shape, form.level, form.secrets)
    return anchor.run()


if __name__ == "__main__":
    sys.exit(main())
