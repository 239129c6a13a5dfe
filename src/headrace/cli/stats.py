"""``headrace stats``: look at what was counted, serve it to Prometheus, and count what waits in line."""

from __future__ import annotations

import importlib.util
import sys
import time
from contextlib import closing
from typing import Annotated, Any

import typer
import typer.core

from headrace.cli.arguments import Flags, argument, flag, option, with_flags
from headrace.cli.commands import command, group
from headrace.cli.failure import UsageFault
from headrace.cli.output import span
from headrace.cli.session import Session


class _Group(typer.core.TyperGroup):
    """``headrace stats LABEL`` means ``headrace stats show LABEL``: what is asked for most often needs no verb."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("-h", "--help")):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = group("Show, serve and consume statistics; without a command: show.", _Group)

_HOW: Flags = {
    "since": flag(float | None, "--since TIME", "How far back to read.", "1h"),
    "every": flag(str | None, "--every RESOLUTION", "second to year. Default: the resolution that fits into a line."),
    "plot": flag(str | None, "--plot FIELD", "Draw this field over time."),
    "watch": flag(bool, "--watch", "Print it again every two seconds, until Ctrl-C."),
}


@command(app, "show")
@with_flags(_HOW)
def show(
    session: Session,
    label: Annotated[str, argument("LABEL", "A label, such as views/product. Default: all.")] = "",
    **how: Any,
) -> None:
    """Show the counts of a label: totals, rates and percentiles; then the labels below it.

    Times are UTC in JSON and local in a plot. With --json one document for the label, and one for each below it.
    """
    _show(session, label, None, **how)


@command(app, "task")
@with_flags(_HOW)
def task(
    session: Session,
    name: Annotated[str, argument("[NAME]", "A task, such as tasks.fetch. Default: all.")] = "",
    **how: Any,
) -> None:
    """Show counts and times of a task's jobs: stored, started, ended, waited, ran.

    The same as show jobs/NAME. A label of your own that is called task is shown with show task.
    """
    _show(session, "task", name, **how)


@command(app, "queue")
@with_flags(_HOW)
def queue(
    session: Session,
    name: Annotated[str, argument("[NAME]", "A queue, such as default. Default: all.")] = "",
    **how: Any,
) -> None:
    """Show the jobs of a queue, as stats task does for a task.

    The same as show queues/NAME.
    """
    _show(session, "queue", name, **how)


@command(app, "worker")
@with_flags(_HOW)
def worker(
    session: Session,
    name: Annotated[str, argument("[NAME]", "Host and pid, such as host:4711. Default: all.")] = "",
    **how: Any,
) -> None:
    """Show how busy a worker was (microseconds), and its runners' memory (bytes).

    The same as show workers/NAME. It is kept for a week.
    """
    _show(session, "worker", name, **how)


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
    from headrace.metrics.metric_families import Exporter
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
    from headrace.metrics.alert_rules import rules_document, rules_file

    if session.output.json:
        session.output.document(rules_document(dashboard))
    else:
        session.output.line(rules_file(dashboard))


@command(app, "board", shared=("json", "debug"))
def board(session: Session) -> None:
    """Print a board for Grafana: headrace stats board > headrace.json, then import that."""
    from headrace.metrics.alert_rules import board as drawn

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
    from headrace.errors import BrokerUnavailable, StoreFull, StoreUnavailable
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


def _show(session: Session, label: str, name: str | None, *, since: float | None, **how: Any) -> None:
    from headrace.cli.stats_output import show_counts

    show_counts(session, label, name, since or 3600.0, **how)
