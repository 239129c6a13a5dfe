"""``python -m headrace``: the command line, where the ``headrace`` program is not on PATH."""

from __future__ import annotations

from headrace.cli import main

if __name__ == "__main__":
    main()
