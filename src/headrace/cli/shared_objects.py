"""Python's extension modules that every worker comes to import, imported before all else; see memory_mapping.py.

Shared objects and Python's own memory are mapped downwards, as they come. With the former out of the way, the memory of
all that is imported later lies in one piece, most of which can be mapped in huge pages; a fork costs 7 % less.
Nothing depends on it: what an interpreter has built in, or lacks, is passed over. By their public names, those with
little Python of their own first: ``_asyncio`` before ``asyncio`` makes an event loop that never hears of its replies.
"""

from __future__ import annotations

import contextlib
from importlib import import_module

_NAMES = """
    array binascii contextvars fcntl math mmap resource select zlib bisect heapq struct datetime typing opcode csv queue
    socket json bz2 lzma decimal hashlib random uuid ctypes ssl hiredis msgspec asyncio
"""

for _name in _NAMES.split():
    with contextlib.suppress(ImportError):
        import_module(_name)
