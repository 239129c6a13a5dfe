"""A store on another server, and the way there ended anywhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import Headrace
from headrace.errors import HeadraceError, MigrationRefused, SchemaMismatch, StoreUnavailable
from headrace.migrations import Moved, Mover
from headrace.protocol.keys import Keys
from headrace.settings import Settings
from headrace.store.url import parse
from tests.golden import dump
from tests.migrations.test_migrator import ProgramEnded, cut_at
from tests.servers import Server

KEYS = Keys()
MARK = KEYS("move")
NewServer = Callable[..., Server]


@pytest.fixture
def pair(new_server: NewServer) -> tuple[Server, Server]:
    return new_server(append_only=True), new_server(append_only=True)


@pytest.fixture
def producer(pair: tuple[Server, Server]) -> Iterator[Headrace]:
    app = Headrace(pair[0].url, timeout=20)
    yield app
    app.close()


def move(source: Server, target: Server, heard: Callable[[Moved], object] = lambda _: None) -> Moved:
    with Mover(parse(source.url), parse(target.url), Settings(timeout=5.0), piece=10) as mover:
        return mover.run(heard)


def everything(server: Server) -> list[str]:
    """All keys but the mark; times to live go on, so whole seconds."""
    return sorted(line for line in dump.dump(server.client()) if MARK not in line and '"PEXPIRE' not in line)


def filled(app: Headrace) -> list[str]:
    """Jobs and workflows of several states; the ids of those that are ready."""
    nap = app.by_name("tasks.add")
    ids = [nap.enqueue(n).id for n in range(30)]
    for n in range(10):
        nap.options(delay=3600).enqueue(n)
        nap.options(unique=f"u{n}", queue="other").enqueue(n)
        nap.options(key="k", queue="other").enqueue(n)
    return ids


def open_to_programs(server: Server) -> bool:
    app = Headrace(server.url, timeout=20)
    try:
        app.overview()
    except SchemaMismatch:
        return False
    finally:
        app.close()
    return True


def emptied(server: Server) -> None:
    client: Any = server.client()
    client.flushdb()


async def test_a_producer_with_an_open_connection_is_refused(pair: tuple[Server, Server], producer: Headrace) -> None:
    source, target = pair
    add = producer.by_name("tasks.add")
    await add.aenqueue(1)
    add.enqueue(1)
    move(source, target)
    kept = everything(source)
    for _ in range(2):
        with pytest.raises(SchemaMismatch, match="has moved"):
            await add.aenqueue(2)
        with pytest.raises(SchemaMismatch, match="has moved"):
            add.enqueue(2)
    assert everything(source) == kept


@pytest.mark.slow
def test_an_end_at_any_exchange_leaves_one_claimable_place(
    pair: tuple[Server, Server], producer: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = pair
    filled(producer)
    before = everything(source)
    number, ended = 0, False
    while not ended:
        number += 1
        source.client().delete(MARK)
        emptied(target)
        with monkeypatch.context() as patch:
            cut_at(patch, number)
            try:
                move(source, target)
                ended = True
            except ProgramEnded:
                pass
        usable = [
            open_to_programs(source),
            bool(target.client().exists(KEYS("scheduled"))) and open_to_programs(target),
        ]
        assert sum(usable) <= 1, number
        if ended:
            assert usable == [False, True]
            break
        if target.client().exists(MARK):
            target.client().hset(MARK, "until", 1)  # as if the lease had ended by itself
        with contextlib.suppress(MigrationRefused):
            move(source, target)
        assert everything(target) == before, number
        assert not open_to_programs(source)
        assert open_to_programs(target)
    assert number > 25


@pytest.mark.parametrize("which", [0, 1])
def test_a_server_that_dies_meanwhile_is_named_and_the_rest_is_done_later(
    pair: tuple[Server, Server], producer: Headrace, which: int
) -> None:
    source, target = pair
    filled(producer)
    before = everything(source)

    def kill(moved: Moved) -> None:
        if moved.share > 0.4:
            pair[which].kill()

    with pytest.raises(StoreUnavailable, match="run headrace migrate again"):
        move(source, target, kill)
    pair[which].restart()
    assert not open_to_programs(source)
    assert not open_to_programs(target)
    target.client().hset(MARK, "until", 1)
    move(source, target)
    assert everything(target) == before


def test_what_cannot_be_moved_says_why(pair: tuple[Server, Server], producer: Headrace, new_server: NewServer) -> None:
    source, target = pair
    with pytest.raises(SchemaMismatch, match="holds no store"):
        move(source, target)
    filled(producer)
    with pytest.raises(MigrationRefused, match="holds a store in this namespace already"):
        move(source, source)
    other = new_server()
    app = Headrace(other.url)
    app.by_name("tasks.add").enqueue(1)
    app.close()
    with pytest.raises(MigrationRefused, match="holds a store in this namespace already"):
        move(source, other)
    source.client().zadd(KEYS("owners"), {"shop:1": (time.time() + 60) * 1e6})
    with pytest.raises(MigrationRefused, match=r"workers use .*shop:1; stop them"):
        move(source, target)
    assert producer.by_name("tasks.add").enqueue(1), "a refused move leaves no mark"
    source.client().delete(KEYS("owners"))

    def stop(_: Moved) -> None:
        raise ProgramEnded

    with pytest.raises(ProgramEnded):
        move(source, target, stop)
    with pytest.raises(MigrationRefused, match="another program moves it"):
        move(source, target)
    with pytest.raises(MigrationRefused, match=f"is being moved to {target.url}"):
        move(source, new_server())
    with pytest.raises(HeadraceError, match="is being moved"):
        move(target, new_server())
    target.client().hset(MARK, "until", 1)
    move(source, target)
    with pytest.raises(MigrationRefused, match="already"):
        move(source, target)
