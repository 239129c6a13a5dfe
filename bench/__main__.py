"""``python -m bench``: run benchmarks, print one table, write JSON. Nothing that it started outlives it."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from bench.context import Context, headrace_is_here
from bench.figure import Figure, medians
from bench.processes import BenchError

_BENCHMARKS = (
    "drain",
    "kinds",
    "parts",
    "idle",
    "tail",
    "idle-load",
    "mixed",
    "enqueue",
    "durability",
    "scale",
    "shards",
    "doctor",
    "unique",
    "memory",
    "kill",
    "rolling",
    "limits",
    "pss",
    "fan",
    "flows",
    "cache",
    "tracking",
    "choose",
    "pool",
    "stats",
    "schedules",
    "fairness",
    "warm",
    "dashboard",
    "observability",
)
# Other queues, or the floor, have a figure in these; the rest measures Headrace alone.
_WITH_OTHERS = ("drain", "idle", "idle-load", "enqueue", "memory", "fan")
_OURS_ONLY = tuple(name for name in _BENCHMARKS if name not in _WITH_OTHERS)


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("benchmarks", nargs="*", metavar="BENCHMARK", help=f"of {', '.join(_BENCHMARKS)}; default all")
    parser.add_argument("--peers", action="store_true", help="measure RQ, Celery, Dramatiq and Huey in the same run")
    parser.add_argument("--only", action="append", default=[], metavar="WORD", help="systems whose name holds WORD")
    parser.add_argument("--repeat", type=int, default=3, metavar="N", help="runs, of which medians are shown (3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one run: shows that all works")
    parser.add_argument("--minutes", type=float, default=0, metavar="N", help="trials with kills last so long, or once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    arguments = parser.parse_args(words)
    if unknown := set(arguments.benchmarks) - set(_BENCHMARKS):
        parser.error(f"no benchmark {min(unknown)!r}; there are {', '.join(_BENCHMARKS)}")
    if arguments.repeat < 1:
        parser.error("--repeat takes 1 or more")
    return arguments


def _repeat(name: str, context: Context, repeat: int, runs: list[list[Figure]]) -> None:
    """Append the figures of each repetition to ``runs``; one that fails is noted and ends this benchmark."""
    module = importlib.import_module(f"bench.{name.replace('-', '_')}")
    while len(runs) < repeat:
        try:
            runs.append(module.run(context))
        except BenchError as error:
            context.failures.append(f"{name}: {error}")
            break


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _table(figures: Sequence[Figure], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in ("figure", "value", "unit", "reference", "ratio", "bar", "met"):
        table.add_column(
            heading, justify="right" if heading in ("value", "ratio") else "left", no_wrap=heading != "figure"
        )
    words = {True: "[green]yes[/green]", False: "[red]no[/red]", None: ""}
    for figure in figures:
        reference = f"{figure.against} {_number(figure.reference)}" if figure.reference is not None else ""
        name = f"{figure.name} [dim]({figure.note})[/dim]" if figure.note else figure.name
        bar = "" if figure.bar is None else str(figure.bar)
        ratio = "" if figure.ratio is None else _number(figure.ratio)
        table.add_row(name, _number(figure.value), figure.unit, reference, ratio, bar, words[figure.met])
    return table


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _names(arguments: argparse.Namespace, console: Console) -> list[str]:
    names = arguments.benchmarks or list(_BENCHMARKS)
    if headrace_is_here():
        return names
    console.print(f"Headrace is not importable here: no {', '.join(_OURS_ONLY)}, and no figure of its own")
    return [name for name in names if name not in _OURS_ONLY]


def _tell(figures: Sequence[Figure], failures: Sequence[str], file: Path | None, console: Console) -> None:
    where = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    console.print(_table(figures, where))
    for failure in failures:
        console.print(f"not measured: {failure}", style="red", markup=False, highlight=False)
    if file:
        file.write_text(json.dumps([figure.as_dict() for figure in figures], indent=1) + "\n")


def main(words: Sequence[str] | None = None) -> int:
    """Exit status: 0 all bars met, 1 a bar missed or a benchmark failed, 2 wrong usage, 130 interrupted."""
    arguments = _arguments(words)
    # In a file or a log, eighty columns would break every name in three.
    console = Console(width=None if sys.stdout.isatty() else 150)
    # Without this a termination would skip the blocks that end the servers and workers.
    signal.signal(signal.SIGTERM, _interrupted)
    started = time.monotonic()
    status = console.status("starting")

    def say(line: str) -> None:
        status.update(line)
        if not console.is_terminal:
            print(f"{time.monotonic() - started:6.1f} s  {line}", file=sys.stderr, flush=True)

    context = Context(arguments.peers, arguments.quick, say, arguments.minutes, tuple(arguments.only))
    if arguments.peers and not context.peers_python.exists():
        console.print("the peers are not installed: `make bench-peers` does that, and runs them")
        return 2
    measured: dict[str, list[list[Figure]]] = {name: [] for name in _names(arguments, console)}
    try:
        with status:
            for name, runs in measured.items():
                _repeat(name, context, 1 if arguments.quick else arguments.repeat, runs)
    finally:
        # Minutes of measurement are shown even when the rest was interrupted or broke.
        figures = [figure for runs in measured.values() for figure in medians(runs)]
        _tell(figures, context.failures, arguments.json, console)
    return 1 if context.failures or any(figure.met is False for figure in figures) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
