"""The oldest driver that Headrace accepts, beside the newest, with which the suite runs.

Owns: fetching it once for this machine into a directory that comes first on a program's path.
"""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def oldest_version() -> str:
    """The floor of the dependency on redis, as the project declares it."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (found,) = [match[1] for text in declared if (match := re.match(r"redis>=([\d.]+)", text))]
    return str(found)


def oldest() -> Path:
    """The directory that holds it, fetched at first use and kept for the next run."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-tests"
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / f"redis-{oldest_version()}"
    with (cache / "lock-driver").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                target = Path(scratch, "driver")
                wanted = f"redis=={oldest_version()}"
                install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wanted]
                subprocess.run(install, check=True, timeout=120)
                target.rename(home)
    return home
