"""``headrace acts``: what people did by hand, and when."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.cli.session import Session
from headrace.cli.units import distance

if TYPE_CHECKING:
    from headrace.model.activity import Act

Limit = Annotated[int, typer.Option("--limit", metavar="N", help="Lines on a page, 1 to 1000.")]
After = Annotated[str | None, typer.Option("--after", metavar="ID", help="Continue after the previous page.")]
InOrder = Annotated[Literal["asc", "desc"], typer.Option("--order", metavar="asc|desc", help="desc is newest first.")]


def acts(session: Session, limit: Limit = 50, after: After = None, order: InOrder = "desc") -> None:
    """List what people did from a dashboard or a shell: who, when, by what, and what the store replied.

    The newest 10,000 acts are kept. As JSON it prints one line an act, then one with the cursor of the next page if
    there is one.
    """
    from headrace.admin.documents import act_document

    with session.view() as app:
        page = app.acts.page(limit=limit, after=after, order=order)
    if session.output.json:
        for one in page:
            session.output.document(act_document(one))
        if page.next:
            session.output.document({"next": page.next})
        return
    now = time.time()
    rows = [(distance(one.at_us, now), one.who, one.by, one.verb, _what(one), one.reply) for one in page]
    session.output.table(("when", "who", "by", "act", "on", "reply"), rows, keep=("when",), spare="reply")
    if not page.acts:
        session.output.remark("no act is recorded yet: verbs of the dashboard and of this program are")
    if page.next:
        session.output.remark(f"more: --after {page.next}")


def _what(one: Act) -> str:
    many = f" ({one.count:,})" if one.count > 1 else ""
    return f"{one.kind} {one.name or one.scope}".strip() + many
