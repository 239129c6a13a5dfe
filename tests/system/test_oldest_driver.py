"""What touches the driver, run once more with the oldest one that the project accepts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests import drivers
from tests.servers import DEFAULT

PARTS = {
    "store": ("tests/store/test_store.py",),
    "sentinel": ("tests/store/test_sentinel.py",),
    "tls": ("tests/store/test_tls.py",),
    "others": ("tests/unit/test_url.py", "tests/store/test_app.py", "tests/cache/test_cache.py"),
}


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", PARTS)
def test_the_store_and_the_cache_work_with_the_oldest_driver(part: str) -> None:
    home = str(drivers.oldest())
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}
    told = subprocess.run(
        [sys.executable, "-c", "import redis; print(redis.__version__, redis.__file__)"],
        env=environment, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    assert told.split()[0] == drivers.oldest_version()
    assert told.split()[1].startswith(home)
    # The tests' own clients leave sockets to the garbage collector with it, where a server is not there yet.
    warnings = ("-W", "ignore::pytest.PytestUnraisableExceptionWarning")
    # What differs is the driver, whichever server it speaks to.
    options = ("-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--servers", DEFAULT, *warnings)
    command = [sys.executable, "-m", "pytest", *options, *PARTS[part]]
    done = subprocess.run(command, cwd=drivers.ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
