"""Python's extension modules that every worker comes to import, imported before all else; see worker/pages.py.

Shared objects and Python's own memory are mapped downwards, as they come. With the former out of the way, the memory of
all that is imported later lies in one piece, most of which can be mapped in huge pages; a fork costs 7 % less.
Nothing depends on it: one that an interpreter has built in, or lacks, is passed over.
"""

from __future__ import annotations

import contextlib
from importlib import import_module

_NAMES = """
    _asyncio _bisect _blake2 _bz2 _contextvars _csv _ctypes _datetime _decimal _hashlib _heapq _json _lzma _opcode
    _posixsubprocess _queue _random _sha512 _socket _ssl _struct _typing _uuid array binascii fcntl hiredis math mmap
    msgspec resource select zlib
"""

for _name in _NAMES.split():
    with contextlib.suppress(ImportError):
        import_module(_name)
