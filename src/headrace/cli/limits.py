"""``headrace limits``: look at limits, change, pause and resume them. No code of the application is needed."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Annotated, Any

from headrace.cli.arguments import argument, option
from headrace.cli.commands import command, group
from headrace.cli.output import distance, moment, parse_duration, span
from headrace.cli.session import OperationFault, Session, UsageFault

if TYPE_CHECKING:
    from headrace.app import Headrace
    from headrace.model.limit_rules import Concurrency, LimitState, Override, Rate
    from headrace.tasks.limit import Limit

Name = Annotated[str, argument("NAME", "The limit's name.")]
Value = Annotated[str | None, option("--value VALUE", "Only this value of the argument or key that it goes by.")]
For = Annotated[float | None, option("--for TIME", "It ends by itself after TIME, such as 10m.")]

app = group("List, show, change, pause and resume limits.")


@command(app, "list")
def list_(
    session: Session,
    after: Annotated[str, option("--after NAME", "Begin behind this name.")] = "",
    limit: Annotated[int, option("--limit N", "Limits at most.", min=1, max=500)] = 100,
) -> None:
    """List the limits: their numbers, how many of their jobs run and wait."""
    from headrace.admin.documents import limit_document

    with session.view() as headrace:
        page = headrace.limits.page(after, limit)
    session.output.listing(
        map(limit_document, page), ("limit", "by", "numbers", ">running", ">waiting", "next start"),
        [(one.name, one.by or "-", *_columns(one, page.now / 1e6)) for one in page],
        keep=("limit",), following=page.next, note=f"{page.count:,} in all" if page.next else "",
        empty="there is no limit: workers declare the limits of their code when they start",
    )  # fmt: skip


def _limit(headrace: Headrace, name: str) -> Limit:
    page = headrace.limits.page(limit=500)
    names = [one.name for one in page]
    if name not in names and page.next is None:
        near = difflib.get_close_matches(name, names, 1)
        others = f"it knows {', '.join(names[:10])}" if names else "workers declare those of their code when they start"
        raise OperationFault(f"the store knows no limit {name}: {f'did you mean {near[0]}?' if near else others}")
    return headrace.limits[name]


def _columns(one: LimitState, now: float) -> tuple[str, str, str, str]:
    from headrace.admin.documents import limit_numbers

    changed = " (set)" if any(other.part != "paused" for other in one.overrides) else ""
    weight = f", weight {one.weight:g}" if one.weight != 1 else ""
    held = "-" if one.held is None else f"{one.held:,}"
    return limit_numbers(one.rate, one.concurrency) + weight + changed, held, f"{one.waiting:,}", _opens(one, now)


def _opens(one: LimitState, now: float) -> str:
    if one.paused:
        return f"paused, resumes {distance(one.until, now)}" if one.until else "paused"
    if one.opens is None:
        return "when a job ends"
    return distance(one.opens, now) if one.opens else "now"


@command(app, "show")
def show(
    session: Session,
    name: Name,
    value: Value = None,
    limit: Annotated[int, option("--limit N", "Values at most.", min=1, max=500)] = 20,
) -> None:
    """Show one limit with its tasks, queues and values, or one value of it."""
    from headrace.admin.documents import limit_document

    with session.view() as headrace:
        found = _limit(headrace, name)
        page = found.values(limit)
        whole, rows = page.rows[0], page.rows[1:]
        if value is not None:
            whole, rows = found.state(value), ()
    has = sorted(which for which, limits in page.limited.items() if name in limits)
    if session.output.json:
        more = {"tasks_and_queues": has, "values": [limit_document(one) for one in rows]}
        session.output.document(limit_document(whole) | ({} if value is not None else more))
        return
    _tell(session, whole, has, page.now / 1e6)
    if rows:
        session.output.line("")
        columns = [(one.value or "(none)", *_columns(one, page.now / 1e6)) for one in rows]
        session.output.table(("value", "numbers", ">running", ">waiting", "next start"), columns, keep=("value",))
    if len(rows) == limit:
        session.output.remark(f"these are {limit} values: --limit shows more, --value one of them")


def _tell(session: Session, state: LimitState, has: list[str], now: float) -> None:
    numbers, held, waiting, opens = _columns(state, now)
    session.output.facts(
        [
            ("limit", state.name),
            ("value", None if state.value is None else state.value or "(none)"),
            ("by", state.by),
            *((kind, name) for kind, _, name in (which.partition(":") for which in has)),
            ("numbers", numbers),
            ("backlog", f"{state.backlog:,}" if state.backlog else None),
            ("when full", state.full if state.full != "wait" else None),
            *((one.part if one.part == "paused" else f"{one.part} set", _until(one, now)) for one in state.overrides),
            ("running", held if state.held is not None else None),
            ("waiting", waiting),
            ("next start", opens),
        ]
    )


def _until(one: Override, now: float) -> str:
    return f"until {moment(one.until, now)}" if one.until else "without end"


@command(app, "set")
def set_(
    session: Session,
    name: Name,
    rate: Annotated[str | None, option("--rate N/TIME", "N starts in each TIME, such as 500/1m.")] = None,
    burst: Annotated[int | None, option("--burst N", "With --rate: this many more together.", min=0)] = None,
    shape: Annotated[str | None, option("--shape SHAPE", "With --rate: even (default), window or clock.")] = None,
    timezone: Annotated[str | None, option("--timezone ZONE", "With --shape clock: such as Europe/Berlin.")] = None,
    concurrency: Annotated[int | None, option("--concurrency N", "N jobs at once.", min=1)] = None,
    weight: Annotated[float | None, option("--weight W", "With --value: turns, where other values have one.")] = None,
    value: Value = None,
    duration: For = None,
) -> None:
    """Set numbers of a limit, or of one of its values, in place of those that code declares. It counts at once.

    It stays when workers start, until you unset it or its time is over. A part that you leave out stays as it is.
    """
    numbers = _numbers(rate, {"burst": burst, "shape": shape, "timezone": timezone}, concurrency)
    if not numbers and weight is None:
        raise UsageFault("nothing to set: give --rate, --concurrency or --weight")
    from headrace.admin.documents import limit_document

    with session.acting("set", "limits", _called(name, value)) as (headrace, act):
        _limit(headrace, name).set(*numbers, value=value, weight=weight, duration=duration)
        state = _limit(headrace, name).state(value)
        what = _columns(state, 0)[0].removesuffix(" (set)")
        act.done(f"{_called(name, value)}: {what}{_ends(duration)}", **limit_document(state))


def _numbers(rate: str | None, more: dict[str, Any], concurrency: int | None) -> list[Rate | Concurrency]:
    from headrace.model.limit_rules import Concurrency, Rate

    found: list[Rate | Concurrency] = []
    if rate is not None:
        n, slash, per = rate.partition("/")
        try:
            count = float(n)
        except ValueError:
            raise UsageFault(f"--rate is a number and a time, such as 500/1m, not {rate!r:.80}") from None
        given = {name: value for name, value in more.items() if value is not None}
        found.append(Rate(int(count) if count.is_integer() else count, parse_duration(per) if slash else 1, **given))
    elif wrong := next((name for name, value in more.items() if value is not None), None):
        raise UsageFault(f"--{wrong} goes with --rate")
    if concurrency is not None:
        found.append(Concurrency(concurrency))
    return found


def _called(name: str, value: str | None) -> str:
    return name if value is None else f"{name} of {value or '(none)'}"


def _ends(duration: float | None) -> str:
    return f"; it ends in {span(duration)}" if duration is not None else ""


@command(app, "unset")
def unset(session: Session, name: Name, value: Value = None) -> None:
    """Return to the numbers and the weight that code declares. A pause stays."""
    with session.acting("unset", "limits", _called(name, value)) as (headrace, act):
        changed = _limit(headrace, name).unset(value)
        text = f"{_called(name, value)} {'is' if changed else 'was'} as code declares it"
        act.done(text, name=name, value=value, changed=changed)


@command(app, "delete")
def delete(session: Session, name: Name) -> None:
    """Delete a limit that code no longer declares, with its set numbers. Jobs that wait for it start without it.

    It is refused while a worker runs whose code declares it, or jobs or programs hold it.
    """
    with session.acting("delete", "limits", name) as (headrace, act):
        waiting = _limit(headrace, name).delete()
        rest = f"; {waiting:,} jobs that waited for it start without it" if waiting else ""
        act.done(f"{name} is deleted{rest}", name=name, deleted=True, waiting=waiting)


@command(app, "pause")
def pause(session: Session, name: Name, value: Value = None, duration: For = None) -> None:
    """Pause a limit, or one of its values: none of its jobs starts; running jobs finish.

    A second pause replaces the end of the first one; without --for, it has no end.
    """
    with session.acting("pause", "limits", _called(name, value)) as (headrace, act):
        changed = _limit(headrace, name).pause(value, duration)
        text = f"{_called(name, value)} {'is paused' if changed else 'was paused already'}{_ends(duration)}"
        act.done(text, name=name, value=value, paused=True, changed=changed, **{"for": duration})


@command(app, "resume")
def resume(session: Session, name: Name, value: Value = None) -> None:
    """Resume a paused limit, or one of its values. A pause of the limit and one of a value end each on their own."""
    with session.acting("resume", "limits", _called(name, value)) as (headrace, act):
        changed = _limit(headrace, name).resume(value)
        state = _limit(headrace, name).state(value)
        text = f"{_called(name, value)} {'goes on' if changed else 'was not paused'}"
        act.done(text, name=name, value=value, paused=state.paused, changed=changed)
    if state.paused:
        session.output.remark(f"the limit as a whole is paused, too: headrace limits resume {name} ends that")
