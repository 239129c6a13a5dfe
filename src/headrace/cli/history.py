"""``headrace acts``, ``events`` and ``alarms``: what people did, what failed, what needs a person."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from headrace.cli.arguments import argument, option
from headrace.cli.commands import command, group
from headrace.cli.output import distance, local, one_line, parse_moment, several
from headrace.cli.session import OperationFault, Session

if TYPE_CHECKING:
    from headrace.model.activity import Act, EventRecord

Limit = Annotated[int, option("--limit N", "Lines on a page, 1 to 1000.")]
After = Annotated[str | None, option("--after ID", "Continue after the previous page.")]
InOrder = Annotated[Literal["asc", "desc"], option("--order asc|desc", "desc is newest first.")]


def acts(
    session: Session,
    verb: Annotated[
        Literal["list", "export", "verify"],
        argument("[VERB]", "list; export prints all acts with their hashes; verify checks an export without a server."),
    ] = "list",
    file: Annotated[Path | None, argument("[FILE]", "The export to verify. Default: stdin.")] = None,
    limit: Limit = 50,
    after: After = None,
    order: InOrder = "desc",
    since: Annotated[str | None, option("--since WHEN", "Export acts from then on, such as 30d.")] = None,
) -> None:
    """List the acts of people from a dashboard or a shell: who, when, how, and the store's reply.

    The newest 10,000 acts are kept. As JSON it prints one line an act, then one with the cursor of the next page if
    there is one. Each act carries the hash of the one before. export prints JSON lines, and verify finds the first line
    that was changed, or before which a line is missing; it takes the first line as given.
    """
    from headrace.admin.documents import act_document

    if verb == "verify":
        _verify(session, file)
        return
    with session.view(hide=verb == "list") as app:
        if verb == "export":
            begin = parse_moment(since).timestamp() if since else 0.0
            for act in app.acts.export(begin):
                session.output.document({"id": act.id, "fields": act.fields})
            return
        page = app.acts.page(limit=limit, after=after, order=order)
    now = time.time()
    session.output.listing(
        map(act_document, page), ("when", "who", "by", "act", "on", "reply"),
        [(distance(one.at_us, now), one.who, one.by, one.verb, _what(one), one.reply) for one in page],
        keep=("when",), spare="reply", following=page.next,
        empty="no act is recorded yet: headrace records the verbs of the dashboard and of this program",
    )  # fmt: skip


def _verify(session: Session, file: Path | None) -> None:
    from headrace.model.activity import ChainedAct, chain_breach

    text = file.read_bytes() if file else sys.stdin.buffer.read()
    try:
        found = [msgspec.json.decode(line, type=ChainedAct) for line in text.splitlines() if line.strip()]
    except msgspec.MsgspecError as error:
        raise OperationFault(f"a line is not an exported act: {error}") from error
    if breach := chain_breach(found):
        raise OperationFault(f"the chain breaks at act {breach}: the line before it was changed, or lines are missing")
    words = f"{several(len(found), 'act')} in one chain"
    session.output.done(f"{words}, from {found[0].id} on" if found else words, {"acts": len(found)})


def _what(one: Act) -> str:
    many = f" ({one.count:,})" if one.count > 1 else ""
    return f"{one.kind} {one.name or one.scope}".strip() + many


def events(
    session: Session,
    kind: Annotated[list[str] | None, option("--kind KIND", "Only events of this kind; may be given again.")] = None,
    limit: Limit = 50,
    after: After = None,
    order: InOrder = "desc",
    follow: Annotated[
        bool, option("--follow -f", "Print events as they happen, until Ctrl-C; --after says from where.")
    ] = False,
) -> None:
    """List events: failures, workers that came or died, pauses, workflows that failed.

    The newest 10,000 events are kept, for a week. As JSON it prints one line an event, then one with the cursor of the
    next page if there is one.
    """
    with session.view(hide=True) as app:
        if follow:
            for one in app.events.follow(kind or (), after=after):
                _tell(session, one)
            return
        page = app.events.page(kind or (), limit=limit, after=after, order=order)
    for one in page:
        _tell(session, one)
    if page.next and session.output.json:
        session.output.document({"next": page.next})
    elif page.next:
        session.output.remark(f"more: --after {page.next}")
    elif not page:
        session.output.remark("no event is stored: nothing has failed or changed")


def _tell(session: Session, one: EventRecord) -> None:
    from headrace.admin.documents import event_document

    if session.output.json:
        session.output.document(event_document(one))
    else:
        facts = " ".join(f"{name}={one_line(text)}" for name, text in one.facts.items() if text)
        session.output.line(f"{local(one.at_us)}  {one.kind}  {facts}")
    # Those who follow through a pipe wait for it.
    sys.stdout.flush()


alarms = group("List alarms.")


@command(alarms, "list")
def list_alarms(session: Session) -> None:
    """List the alarms that a worker looked at within a week: the raised ones first, with the figure that raised them.

    The code declares alarms with app.alarm(...), and workers look at them every ten seconds. As JSON it prints one line
    an alarm.
    """
    from headrace.admin.documents import alarm_document

    with session.view() as app:
        found = app.alarms.page()
    now = time.time()
    rows = [
        (
            one.name, f"raised {distance(one.state.raised_us, now)}" if one.state.raised_us else "-",
            one.state.shown if one.state.raised_us else "-", one.state.words, distance(one.looked_us, now),
        )
        for one in found
    ]  # fmt: skip
    session.output.listing(
        map(alarm_document, found), ("alarm", "state", ">figure", "rule", "looked at"), rows,
        keep=("alarm", "state"), spare="rule",
        empty="no worker looked at an alarm within a week: app.alarm(...) declares one",
    )  # fmt: skip
