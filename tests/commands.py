"""The ``headrace`` program within the process of the test, for commands that print what the store says."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Generator, Mapping
from pathlib import Path

import pytest

import headrace.cli
from tests.program import Ended, Program, checked


class Commands(Program):
    """Runs each command but ``worker`` in this process, which takes a tenth of the processor that a fork takes.

    Tests of streams, of signals and of what a command imports start processes: ``fresh`` and ``start`` do.
    """

    def __call__(self, *arguments: str, code: int | None = 0, **environment: str) -> Ended:
        if arguments[:1] == ("worker",):
            return super().__call__(*arguments, code=code, **environment)
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        with (
            _placed(self.directory, self.environment | environment),
            Path(os.devnull).open() as nothing,
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(SystemExit) as end,
        ):
            for name, stream in {"stdin": nothing, "stdout": out, "stderr": err}.items():
                patch.setattr(sys, name, stream)
            patch.setattr(sys, "argv", ["headrace", *arguments])
            headrace.cli.main()
        said = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
        return checked(Ended(int(end.value.code or 0), *said), code)


@contextlib.contextmanager
def _placed(directory: Path, environ: Mapping[str, str]) -> Generator[None]:
    """Be in this directory, with this environment and none of its modules imported; all is undone at the end."""
    before, path, modules = dict(os.environ), sys.path[:], set(sys.modules)
    # A bridge takes those that stop it.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    importlib.invalidate_caches()
    try:
        with contextlib.chdir(directory):
            os.environ.clear()
            os.environ.update(environ)
            yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(before)
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(directory)):
                del sys.modules[name]
