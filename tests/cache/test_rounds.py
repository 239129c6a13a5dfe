"""Ten thousand random rounds over threads and processes, while connections die; in the end all equal the server."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from headrace.protocol.keys import Keys
from tests.cache.listener_program import Told
from tests.cache.player import NAMES
from tests.servers import Server, connect

PROCESSES, THREADS, ROUNDS = 2, 3, 1700
pytestmark = [pytest.mark.slow, pytest.mark.system]


def truth(client: redis.Redis) -> dict[str, Any]:
    keys = Keys()
    stored: list[Any] = client.mget([keys.cache(str(n)) for n in range(NAMES)])  # type: ignore[assignment]
    return {str(n): None if v is None else msgspec.msgpack.decode(v.partition(b"\n")[2]) for n, v in enumerate(stored)}


class Saboteur:
    """Kills the players' connections, one at a time, until it is stopped."""

    def __init__(self, url: str, seed: int) -> None:
        self.kills = {"link": 0, "store": 0}
        self._client, self._dice, self._stop = connect(url), random.Random(seed), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self._client.close()

    def _run(self) -> None:
        while not self._stop.wait(self._dice.uniform(0.01, 0.1)):
            found = [one for one in self._client.client_list() if one["name"] == "headrace"]
            if not found:
                continue
            # Links are few among the connections, and what breaks with them is the point: the oldest dies, so that each
            # process loses its own.
            links = [one for one in found if set(one["flags"]) & {"t", "P"}]
            oldest = min(links, key=lambda one: int(one["id"]), default=None)
            few = self.kills["link"] < 6
            victim = oldest if oldest and (few or self._dice.random() < 0.3) else self._dice.choice(found)
            with contextlib.suppress(redis.ResponseError):
                self._client.execute_command("CLIENT", "KILL", "ID", victim["id"])
                self.kills["link" if set(victim["flags"]) & {"t", "P"} else "store"] += 1


def play(url: str, seed: int, directory: Path) -> list[Told]:
    """Players that are ready."""
    players = [
        Told("tests.cache.player", directory / str(place), url, seed, place, PROCESSES, THREADS, ROUNDS)
        for place in range(PROCESSES)
    ]
    for player in players:
        assert json.loads(player.line()) == "ready"
    return players


def ask(player: Told) -> dict[str, Any]:
    player.tell("state")
    found: dict[str, Any] = json.loads(player.line())
    return found


def end(players: list[Told]) -> None:
    """Let all of them come to the end of their rounds."""
    for player in players:
        player.tell("enough")
    for player in players:
        assert json.loads(player.line()) == "ended"


@pytest.mark.parametrize("sabotage", [False, True], ids=["calm", "sabotage"])
def test_everybody_ends_equal_to_the_server(
    url: str, client: redis.Redis, tmp_path: Path, sabotage: bool, eventually: Callable[..., Any],
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    seed = request.config.getoption("randomly_seed", 1) if request.config.pluginmanager.hasplugin("randomly") else 1
    players, saboteur = play(url, int(seed), tmp_path), Saboteur(url, int(seed)) if sabotage else None
    try:
        for player in players:
            player.tell("go")
        if saboteur is not None:
            # However quick or slow the rounds are, each has lost its link amid them, and then had one for a while.
            eventually(lambda: saboteur.kills["link"] > 6, 60)
            saboteur.stop()
            eventually(lambda: all(ask(player)["hits"] > ROUNDS // 10 for player in players), 60)
        end(players)
        for player in players:
            eventually(lambda player=player: ask(player)["healthy"], 20)

        def agree() -> bool:
            # Values with short lives end meanwhile, so the truth is asked on both sides of the question.
            before = truth(client)
            states = [ask(player)["values"] for player in players]
            return all(state == before == truth(client) for state in states)

        eventually(agree, 20)
        for player in players:
            found = ask(player)
            assert found["faults"] == []
            assert found["pending"] == 0
            assert found["hits"] > ROUNDS // 10
            assert (found["epochs"] > 1) is sabotage
    finally:
        if saboteur is not None:
            saboteur.stop()
        for player in players:
            player.end()


def test_a_restarted_server_is_believed(
    new_server: Callable[..., Server], tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """Killed twice while all play; what it forgot is forgotten by everybody."""
    server = new_server(append_only=True)
    players = play(server.url, 7, tmp_path)
    try:
        for player in players:
            player.tell("go")
        for _ in range(2):
            eventually(lambda: server.client().dbsize() > 10)
            server.restart()
        end(players)
        with connect(server.url) as client:
            client.flushall()
            for player in players:
                eventually(lambda player=player: ask(player)["healthy"], 20)
                eventually(lambda player=player: not any(ask(player)["values"].values()), 20)
                assert ask(player)["faults"] == []
    finally:
        for player in players:
            player.end()
