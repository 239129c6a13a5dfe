"""A program of the stale-read suite: threads that read and write at random, and notice every step back in time.

Each name has one writer, a thread, which writes increasing numbers. So no thread may ever read a smaller number than it
has read before, nor one smaller than its own process had already written when the read began.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from typing import Any

from headrace import Headrace
from headrace.cache import Cache

NAMES = 24


class Player:
    def __init__(self, url: str, protocol: int, seed: int, place: int, places: int) -> None:
        self.app = Headrace(url, timeout=20.0)
        self.cache = self.app.__dict__["cache"] = Cache(self.app.client, protocols=(protocol,))  # type: ignore[arg-type]
        self.written = [0] * NAMES
        self.numbers = [0] * NAMES
        self.faults: list[str] = []
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
        for _ in range(rounds):
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


def main() -> None:
    url, protocol, seed, place, places, threads, rounds = sys.argv[1], *map(int, sys.argv[2:])
    player = Player(url, protocol, seed, place, places)
    crowd = [threading.Thread(target=player.play, args=(n, threads, rounds)) for n in range(threads)]
    began = time.monotonic()
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    print(json.dumps({"seconds": time.monotonic() - began}), flush=True)
    for _ in sys.stdin:
        print(json.dumps(player.state()), flush=True)
    player.app.close()


if __name__ == "__main__":
    main()
