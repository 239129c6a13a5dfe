"""The preload: what it does, what it refuses, and that a fork of it starts clean."""

from __future__ import annotations

import errno
import logging
import logging.handlers
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from headrace import Headrace
from headrace.errors import AppImportError, SettingsError
from headrace.settings import load
from headrace.worker import warmup
from headrace.worker.warmup import HookTimeout, run_each


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Write a module that can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    made: list[str] = []

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)
        made.append(name)

    yield write
    for name in made:
        sys.modules.pop(name, None)


# --- what it does ---


def test_modules_are_imported_and_functions_called_in_order_before_the_hooks(
    module: Callable[[str, str], None],
) -> None:
    module("warm_order", "done = ['import']\nclass Kit:\n    @staticmethod\n    def up(): done.append('call')")
    app = Headrace("redis://x", preload=["warm_order", "warm_order:Kit.up"])
    app.on_preload(lambda: sys.modules["warm_order"].done.append("hook"))
    warmup.warm_up(app)
    assert sys.modules["warm_order"].done == ["import", "call", "hook"]


def test_the_setting_is_a_list_in_code_and_commas_elsewhere() -> None:
    assert Headrace("redis://x", preload=["json", "os:getpid"]).settings.preload == "json,os:getpid"
    assert load({"HEADRACE_PRELOAD": "json, os:getpid"}).preload == "json, os:getpid"


@pytest.mark.parametrize("name", ["shop/models.py", "shop:", ":run", "a b", "shop.models:set up", "shop..models"])
def test_a_name_that_can_be_none_is_refused_where_it_is_given(name: str) -> None:
    with pytest.raises(SettingsError, match=r"preload=.* names neither a module .* nor a function"):
        Headrace("redis://x", preload=[name])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("warm_absent", "the preload of warm_absent failed: ModuleNotFoundError"),
        ("os:warm_absent", r"has no attribute 'warm_absent'\"\); correct the name, or install what it names here$"),
        ("os:name", r"os:name is a str, which cannot be called'\); correct the name[^\n]*$"),
        ("warm_broken", r"ZeroDivisionError[\s\S]*warm_broken.py"),
        ("warm_leaves", "the preload of warm_leaves failed: SystemExit"),
        ("warm_gone", "the preload of warm_gone failed: GeneratorExit"),
    ],
)
def test_what_cannot_be_preloaded_is_named(name: str, said: str, module: Callable[[str, str], None]) -> None:
    module("warm_broken", "1 / 0")
    module("warm_leaves", "raise SystemExit(0)")
    module("warm_gone", "raise GeneratorExit")
    with pytest.raises(AppImportError, match=said):
        warmup.warm_up(Headrace("redis://x", preload=name))


# --- what it leaves ---


def test_a_thread_is_refused_and_named() -> None:
    end, app = threading.Event(), Headrace("redis://x")

    def poll() -> None:
        end.wait(20)

    @app.on_preload
    def start() -> None:
        threading.Thread(target=poll, name="poller", daemon=True).start()

    with pytest.raises(AppImportError) as caught:
        warmup.warm_up(app)
    end.set()
    text = str(caught.value)
    here = f"{__name__}.test_a_thread_is_refused_and_named.<locals>"
    assert f"the on_preload hook {here}.start started the thread 'poller' (runs {here}.poll):" in text
    assert "start it in @app.after_fork_child" in text


def test_a_thread_that_ends_with_its_step_is_none_of_our_business(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "PATIENCE", 20)
    app = Headrace("redis://x")
    app.on_preload(lambda: threading.Thread(target=int).start())
    warmup.warm_up(app)


@pytest.mark.parametrize("kind", ["tcp", "listening", "unix", "pair"])
def test_a_socket_is_refused_and_its_peer_named(kind: str, module: Callable[[str, str], None], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "s"))
        local.listen()
        port = there.getsockname()[1]
        text, said = {
            "tcp": (f"c = socket.create_connection(('127.0.0.1', {port}))", f"a socket to 127.0.0.1:{port}:"),
            "listening": ("c = socket.create_server(('127.0.0.1', 0))", "a socket at 127.0.0.1:"),
            "unix": (
                f"c = socket.socket(socket.AF_UNIX); c.connect({str(tmp_path / 's')!r})",
                f"a socket to {tmp_path / 's'}:",
            ),
            "pair": ("c, d = socket.socketpair()", "one end of a pair of sockets and one end of a pair of sockets:"),
        }[kind]
        module("warm_socket", f"import socket\n{text}")
        with pytest.raises(AppImportError) as caught:
            warmup.warm_up(Headrace("redis://x", preload="warm_socket"))
        opened = sys.modules["warm_socket"]
        opened.c.close()
        if kind == "pair":
            opened.d.close()
    assert f"the preload of warm_socket left open {said}" in str(caught.value)
    assert "open it in @app.after_fork_child" in str(caught.value)


def test_where_descriptors_cannot_be_listed_threads_alone_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: str) -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, "no /proc", path)

    monkeypatch.setattr(os, "listdir", absent)
    seen = warmup.read_state()
    assert threading.current_thread() in seen.threads
    assert not seen.sockets


def test_our_own_clients_may_be_used_in_a_preload(url: str) -> None:
    app = Headrace(url)

    @app.on_preload
    def warm() -> None:
        app.cache.set("rate", 1)
        for _ in range(20):
            assert app.cache.get("rate") == 1
        app.stats.add("warm", {"count": 1})
        assert app.queues["default"].size == 0
        assert warmup.read_state() != before, "this must have opened something, or nothing is tested"

    before = warmup.read_state()
    warmup.warm_up(app)
    assert (warmup.threads_since(before), warmup.sockets_since(before)) == ([], [])
    assert app.cache.get("rate") == 1, "it can be used again"
    app.close()


# --- what a fork finds ---


def _in_child(work: Callable[[], bytes]) -> bytes:
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, work())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:  # noqa: PTH123 - a descriptor, no path
        found = pipe.read()
    os.waitpid(pid, 0)
    return found


def test_random_numbers_differ_among_children() -> None:
    def draw() -> bytes:
        warmup.reseed_numpy()
        return f"{random.random()} {np.random.random()}".encode()

    drawn = [_in_child(draw).split() for _ in range(3)]
    assert len({first for first, _ in drawn}) == 3
    assert len({second for _, second in drawn}) == 3


def test_what_waits_in_a_log_buffer_is_written_once() -> None:
    kept: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.getMessage())

    log, buffer = logging.getLogger("warm.buffered"), logging.handlers.MemoryHandler(100, target=Keep())
    log.addHandler(buffer)
    try:
        log.error("before the fork")
        warmup.write_out()
        assert kept == ["before the fork"]
        assert _in_child(lambda: str(len(buffer.buffer)).encode()) == b"0"
    finally:
        log.removeHandler(buffer)
        buffer.close()


# --- hooks ---


def test_each_hook_has_its_turn_and_its_share() -> None:
    done, failed = list[Any](), list[tuple[type, float]]()

    def hang() -> None:
        try:
            while True:
                # One call of C: within Python's own locks the exception becomes a RuntimeError, which is swallowed.
                time.sleep(0.01)
        except Exception:  # noqa: BLE001
            done.append("swallowed")

    def leave() -> None:
        raise SystemExit(1)

    hooks = [hang, leave, lambda: done.append("last")]
    run_each(hooks, 3, lambda _, error, share: failed.append((type(error), share)))
    assert done == ["last"]
    (cut, share), (left, _) = failed
    assert (cut, left) == (HookTimeout, SystemExit)
    assert share <= 1
