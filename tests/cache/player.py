"""A program of the stale-read suite: threads that read and write at random, and notice every step back in time.

Each name has one writer, a thread, which writes increasing numbers. So no thread may ever read a smaller number than it
has read before, nor one smaller than its own process had already written when the read began.

It says when it could begin, and is told by lines: ``go``; ``state``, which it answers; ``enough``, which it answers when
its threads have ended. They play so many rounds at least, and go on until then.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import threading
from pathlib import Path
from typing import Any

from headrace import Headrace
from headrace.cache import listener, values

NAMES = 24


class Player:
    def __init__(self, url: str, seed: int, place: int, places: int) -> None:
        self.app = Headrace(url, timeout=20.0)
        self.cache = self.app.cache
        self.written = [0] * NAMES
        self.numbers = [0] * NAMES
        self.faults: list[str] = []
        self.enough = threading.Event()
        self._seed, self._place, self._places = seed, place, places

    def play(self, thread: int, threads: int, rounds: int) -> None:
        try:
            self._play(thread, threads, rounds)
        except BaseException as error:
            self.faults.append(repr(error))
            raise

    def _play(self, thread: int, threads: int, rounds: int) -> None:
        dice, seen = random.Random(f"{self._seed} {self._place} {thread}"), [0] * NAMES
        seat, seats = self._place * threads + thread, self._places * threads
        mine = [n for n in range(NAMES) if n % seats == seat]
        for turn in itertools.count():
            if turn >= rounds and self.enough.is_set():
                return
            name, own, roll = dice.randrange(NAMES), dice.choice(mine), dice.random()
            if roll < 0.7:
                floor = max(seen[name], self.written[name])
                value = self.cache.get(str(name))
                # None: deleted, expired, or the server could not be asked.
                if value is not None:
                    if value < floor:
                        self.faults.append(f"{name}: read {value} after {floor}")
                    seen[name] = max(seen[name], value)
            elif roll < 0.9:
                self.numbers[own] += 1
                self.cache.set(str(own), self.numbers[own], ttl=dice.choice([0.03, 60, 60]), tags=[f"t{own % 3}"])
                self.written[own] = self.numbers[own]
            elif roll < 0.94:
                self.cache.delete(str(own))
            elif roll < 0.95:
                self.cache.delete_tag(f"t{dice.randrange(3)}")
            else:
                # Returned, but perhaps not stored: a tag may be deleted meanwhile, or the server be away.
                self.numbers[own] = number = self.numbers[own] + 1
                value = self.cache.get(str(own), make=lambda number=number: number, tags=[f"t{own % 3}"])
                if not self.written[own] <= value <= number:
                    self.faults.append(f"{own}: its only writer read {value} after {self.written[own]}")

    def state(self) -> dict[str, Any]:
        values = {str(n): self.cache.get(str(n)) for n in range(NAMES)}
        seen = self.cache.statistics()
        return {
            "values": values, "faults": self.faults[:5], "hits": seen.hits, "epochs": seen.epochs, "healthy": seen.healthy,
            "pending": len(self.cache._listener._pending), "copies": len(self.cache._values),
        }  # fmt: skip


def main() -> int:
    path, url, *numbers = sys.argv[1:]
    seed, place, places, threads, rounds = map(int, numbers)
    values.FIRST = listener.PROBE_TIMEOUT = 20.0
    player = Player(url, seed, place, places)
    crowd = [threading.Thread(target=player.play, args=(n, threads, rounds)) for n in range(threads)]
    # Its link is there before the first round.
    player.cache.get("0")
    print(json.dumps("ready"), flush=True)
    with Path(path).open(encoding="utf-8") as told:
        for line in told:
            if line == "go\n":
                for thread in crowd:
                    thread.start()
            elif line == "enough\n":
                player.enough.set()
                for thread in crowd:
                    thread.join()
                print(json.dumps("ended"), flush=True)
            else:
                print(json.dumps(player.state()), flush=True)
    # Whoever told it has failed, and did not say so.
    player.enough.set()
    player.app.close()
    return 0
