"""``headrace alarms``: where the alarms stand that workers look at."""

from __future__ import annotations

import time

from headrace.cli.commands import command, group
from headrace.cli.output import distance
from headrace.cli.session import Session

app = group("List alarms.")


@command(app, "list")
def list_(session: Session) -> None:
    """List the alarms that a worker looked at within a week: the raised ones first, with the figure that raised them.

    The code declares alarms with app.alarm(...), and workers look at them every ten seconds. As JSON it prints one line
    an alarm.
    """
    from headrace.admin.documents import alarm_document

    with session.view() as program:
        alarms = program.alarms.page()
    if session.output.documents(map(alarm_document, alarms)):
        return
    now = time.time()
    rows = [
        (
            one.name,
            f"raised {distance(one.state.raised_us, now)}" if one.state.raised_us else "-",
            one.state.shown if one.state.raised_us else "-",
            one.state.words,
            distance(one.looked_us, now),
        )
        for one in alarms
    ]
    session.output.table(
        ("alarm", "state", ">figure", "rule", "looked at"), rows, keep=("alarm", "state"), spare="rule"
    )
    if not alarms:
        session.output.remark("no worker looked at an alarm within a week: app.alarm(...) declares one")
