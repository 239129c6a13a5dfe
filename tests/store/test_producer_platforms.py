"""A producer where Python has no forks and no files of Unix: it imports Headrace, enqueues and waits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import headrace
from headrace import Headrace
from tests.deadline import eventually
from tests.servers import Server

# What Windows lacks of the standard library, taken away before anything of Headrace is imported.
WITHOUT_UNIX = """
import os, select, signal, sys
for module in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[module] = None
for name in ("fork", "forkpty", "getuid", "geteuid", "getpgid", "killpg", "register_at_fork", "sched_getaffinity",
             "set_blocking", "setsid", "O_NOFOLLOW", "O_CLOEXEC", "O_DIRECTORY"):
    delattr(os, name)
for name in ("epoll", "poll"):
    delattr(select, name)
for name in ("SIGKILL", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGCHLD", "SIGALRM", "pthread_sigmask", "pthread_kill"):
    delattr(signal, name)
"""

PRODUCER = f"""{WITHOUT_UNIX}
import asyncio, json
import headrace
from headrace import NAMES
from headrace.errors import HeadraceError

async def story():
    job = await app.by_name("t").aenqueue(2)
    return [job.id, str(await job.astate())]

try:
    headrace.Headrace().overview()
except HeadraceError as error:
    said = [str(error)]
app = headrace.Headrace(sys.argv[1])
job = app.by_name("t").enqueue(1)
app.cache.set("a", 1)
said += [app.cache.get("a"), *asyncio.run(story()), job.id]
print(json.dumps(said), flush=True)
try:
    job.result(timeout=60)
except HeadraceError as error:
    print(type(error).__name__)
"""


def test_a_producer_needs_nothing_of_unix(new_server: Callable[..., Server]) -> None:
    server = new_server(tcp=True)
    # All public names but Pool, whose processes are forks.
    code = PRODUCER.replace("NAMES", ", ".join({*headrace.__all__} - {"Pool"}))
    with (
        subprocess.Popen(
            [sys.executable, "-c", code, server.tcp_url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process,
        Headrace(server.url) as app,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        refused, cached, _, state, waiting = json.loads(line)
        assert refused == "set HEADRACE_URL: a private server needs Linux or macOS"
        assert (cached, state) == (1, "ready")
        # It waits by what it hears, not by a poll.
        client = server.client()
        eventually(lambda: any(name.startswith(b"{hr") for name in client.pubsub_channels()))
        app.jobs.get(waiting).cancel()
        assert process.stdout.read() == "JobCancelled\n"


def test_an_import_that_fails_says_why() -> None:
    """Python made "cannot import name 'Headrace'" of each AttributeError."""
    code = "import msgspec; del msgspec.Struct; from headrace import Headrace"
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("ImportError: headrace.app cannot be imported: "), last
    assert "'Struct'" in last
