"""``headrace stats``: look at what was counted, serve it to Prometheus, and count what waits in line."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from headrace.cli.arguments import argument, option
from headrace.cli.commands import command, group
from headrace.cli.output import number, span
from headrace.cli.session import Session, UsageFault
from headrace.errors import BrokerUnavailable, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from headrace.cli.output import Output
    from headrace.stats import Reading, Stats
    from headrace.stats.resolutions import Resolutions

FEW = 60  # buckets of a series at most, where no --every chooses their size
CHILDREN = 50  # labels below the one that is shown
# Fields of each of them.
FIELDS = 3
WATCH = 2.0


class _Group(typer.core.TyperGroup):
    """``headrace stats LABEL`` means ``headrace stats show LABEL``: what is asked for most often needs no verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = group("Show, serve and consume statistics; without a command: show.", _Group)


@command(app, "show")
def show(
    session: Session,
    label: Annotated[
        str, argument("LABEL", "A label, such as views/product, jobs/TASK, queues/NAME or workers/NAME. Default: all.")
    ] = "",
    since: Annotated[float | None, option("--since TIME", "How far back to read.", "1h")] = None,
    every: Annotated[
        str | None, option("--every RESOLUTION", "second to year. Default: one with at most 60 buckets.")
    ] = None,
    watch: Annotated[bool, option("--watch", "Print it again every two seconds, until Ctrl-C.")] = False,
) -> None:
    """Show the counts of a label: totals, rates and percentiles; then the labels below it.

    With --json one document for the label, and one for each below it, with their counts over time; times are UTC.
    """
    from headrace.stats.reading import series_document

    since = since or 3600.0
    with session.view(stats=True) as headrace:
        while True:
            shown, more = _read(headrace.stats, label, since, every, series=session.output.json)
            if watch and sys.stdout.isatty():
                print("\x1b[H\x1b[J", end="")
            documents = (series_document(one.label, one.query.every, one.total(), one.series()) for one in shown)
            if not session.output.documents(documents):
                _print(session.output, shown[0], shown[1:], since)
                if more:
                    session.output.remark(f"there are more labels below: these {CHILDREN} were counted last")
            if not watch:
                return
            sys.stdout.flush()
            time.sleep(WATCH)


@command(app, "serve")
def serve(
    session: Session,
    labels: Annotated[
        list[str] | None, argument("[LABEL]...", "Labels of your own, with those right below each. Default: all.")
    ] = None,
    host: Annotated[str, option("--host ADDRESS", "Address to listen on; other machines may reach it.")] = "127.0.0.1",
    port: Annotated[int, option("--port PORT", "0: any.", min=0, max=65535)] = 9464,
) -> None:
    """Serve metrics and your own statistics to Prometheus, under /metrics, until Ctrl-C.

    It serves this machine only, unless you give --host. A worker with --metrics serves the metrics without your own
    labels.
    """
    from headrace.admin.queues import scale_page
    from headrace.metrics import Exporter
    from headrace.stats import prometheus

    if importlib.util.find_spec("prometheus_client") is None:
        raise UsageFault("this needs prometheus-client: pip install 'headrace[prometheus]'")
    with session.app() as headrace, prometheus.listen(host, port) as sock:
        url = prometheus.url_of(sock)
        session.output.done(f"serving {url}", {"url": url, "port": sock.getsockname()[1]})
        sys.stdout.flush()
        mine = Exporter(headrace.client, headrace.stats)
        pages = {"/scale": scale_page(headrace.queues)}
        prometheus.serve(sock, [mine, prometheus.Scrape(headrace.stats, labels or [""])], pages)


@command(app, "rules", shared=("json", "debug"))
def rules(
    session: Session,
    dashboard: Annotated[str, option("--dashboard URL", "Link each alert to a page of this dashboard.")] = "",
) -> None:
    """Print alert rules for Prometheus: headrace stats rules > headrace.rules.yml."""
    from headrace.metrics import rules_document

    session.output.document(rules_document(dashboard))


@command(app, "board", shared=("json", "debug"))
def board(session: Session) -> None:
    """Print a board for Grafana: headrace stats board > headrace.json, then import that."""
    from headrace.metrics import board as drawn

    session.output.document(drawn())


@command(app, "consume")
def consume(
    session: Session,
    burst: Annotated[bool, option("--burst", "Exit when no batch waits.")] = False,
    every: Annotated[float | None, option("--every TIME", "How often to look.", "1s")] = None,
) -> None:
    """Count the batches that programs with HEADRACE_STATS=stream or amqp sent, each once.

    You may run several consumers; with a broker, one of them counts and the others stand by. You may stop it at any
    time. While the server is away or full, or the broker is away, it waits; with --burst it exits.
    """
    from headrace.stats.broker import Taken

    told = False
    with session.app() as headrace, closing(headrace.stats.consumer()) as consumer:
        while True:
            try:
                step, told = consumer.step(), False
            except (StoreUnavailable, StoreFull, BrokerUnavailable) as error:
                if burst:
                    raise
                if not told:
                    session.output.remark(f"{error}; the consumer goes on when that is over")
                step, told = Taken(0, 0, 0.0, 0), True
            if step.batches or burst:
                facts = {"batches": step.batches, "waiting": step.waiting, "lag": step.lag, "lost": step.lost}
                left = f"{step.waiting - step.batches:,} wait, {span(step.lag)} behind, {step.lost:,} lost"
                session.output.done(f"{step.batches:,} batches counted, {left}", facts)
                sys.stdout.flush()
            if burst and not step.waiting:
                return
            if step.batches == step.waiting:
                time.sleep(max(0.05, 1.0 if every is None else every))


def _read(stats: Stats, label: str, since: float, every: str | None, *, series: bool) -> tuple[list[Reading], bool]:
    """A label and those below it, the last counted ones, and whether there are more of these."""
    from headrace.stats.reading import ask

    now = time.time()
    chosen: Any = every or _fitting(stats.find(label, now).query.kept, since)
    reading = stats.find(label, now - since, every=chosen)
    below = reading.children(limit=CHILDREN + 1)
    kept = [
        child
        for child in reading.children(limit=CHILDREN)
        if any(level.cut.name == reading.query.every for level in child.query.kept.levels)
    ]
    shown = [reading, *kept]
    ask(stats.client, shown, shown if series else ())
    return shown, len(below) > CHILDREN


def _fitting(layout: Resolutions, since: float) -> str:
    for level in layout.levels:
        step = level.cut.step or level.cut.months * 2_629_746
        if since / step <= FEW and since <= level.keep:
            return level.cut.name
    return layout.levels[-1].cut.name


def _print(output: Output, shown: Reading, below: Sequence[Reading], seconds: float) -> None:
    from headrace.stats.reading import PERCENTS

    total = shown.total()
    if not total.exact:
        output.remark(f"the counts begin at {total.start.astimezone():%Y-%m-%d %H:%M %Z}: finer ones have expired")
    if not total.counts and not total.histograms and not below:
        output.remark(f"there are no counts under {shown.label or 'any label'} in the last {span(seconds)}")
        return
    name = shown.label or "(no label)"
    if total.counts:
        output.table((name, ">total", ">per second"), [_count(shown, one, seconds) for one in sorted(total.counts)])
    if total.histograms:
        columns = (name, ">count", ">mean", *(f">p{p}" for p in PERCENTS))
        output.table(columns, [_observed(shown, one, PERCENTS) for one in sorted(total.histograms)])
    if below:
        rows = [row for child in below for row in _child(child, seconds)]
        output.table(("label", "field", ">total", ">per second"), rows)


def _count(shown: Reading, field: str, seconds: float) -> tuple[str, ...]:
    n = shown.total().counts[field]
    return _named(shown, field), f"{n:,}", number(n / seconds)


def _observed(shown: Reading, field: str, percents: Sequence[int]) -> tuple[str, ...]:
    whole = shown.total().histograms[field]
    percentiles = (number(whole.percentile(p)) for p in percents)
    return _named(shown, field), f"{whole.count:,}", number(whole.mean), *percentiles


def _named(shown: Reading, field: str) -> str:
    from headrace.stats.resolutions import unit_of

    unit = unit_of(shown.label, field)
    return f"{field} ({unit})" if unit else field


def _child(child: Reading, seconds: float) -> Iterator[tuple[str, ...]]:
    total = child.total()
    for field in sorted(name for name in total.counts if "/" not in name)[:FIELDS]:
        yield child.label, *_count(child, field, seconds)
    for field in sorted(name for name in total.histograms if "/" not in name)[:FIELDS]:
        named, count, _, p50 = _observed(child, field, (50,))
        yield child.label, f"p50 of {named}", count, p50
