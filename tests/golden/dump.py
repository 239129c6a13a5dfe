"""Keyspaces as text: one command a line, quoted as redis-cli reads it, so that any server and version can load it.

DUMP payloads and RDB files differ between versions; these commands do not.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')


def dump(client: Any) -> Iterator[str]:
    """Every key of a database as the commands that make it, sorted by key."""
    for key in sorted(client.scan_iter(count=1000)):
        kind = client.type(key).decode()
        if kind == "hash":
            yield _line("HSET", key, *(part for pair in sorted(client.hgetall(key).items()) for part in pair))
        elif kind == "zset":
            rows = client.zrange(key, 0, -1, withscores=True)
            yield _line("ZADD", key, *(part for member, score in rows for part in (str(int(score)), member)))
        elif kind == "set":
            yield _line("SADD", key, *sorted(client.smembers(key)))
        elif kind == "list":
            yield _line("RPUSH", key, *client.lrange(key, 0, -1))
        else:
            yield _line("SET", key, client.get(key))
        if (left := client.pttl(key)) > 0:
            yield _line("PEXPIRE", key, str(left))


def load(client: Any, path: Path) -> int:
    """Run a file's commands; how many."""
    pipe, count = client.pipeline(transaction=False), 0
    for line in path.read_text(encoding="ascii").splitlines():
        if line and not line.startswith("#"):
            pipe.execute_command(*(_bytes(word) for word in _WORD.findall(line)))
            count += 1
    pipe.execute()
    return count


def _bytes(word: str) -> bytes:
    value = ast.literal_eval(f'b"{word}"')
    assert isinstance(value, bytes)
    return value


def _line(*words: bytes | str) -> str:
    return " ".join(_quoted(word if isinstance(word, bytes) else word.encode()) for word in words)


def _quoted(word: bytes) -> str:
    named = {ord('"'): '\\"', ord("\\"): "\\\\"}
    return '"' + "".join(named.get(b) or (chr(b) if 32 <= b < 127 else f"\\x{b:02x}") for b in word) + '"'
