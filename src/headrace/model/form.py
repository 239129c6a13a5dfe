"""The records of options: checked, as stored, and as a worker reads them. Pure.

They are made here from ``options.ROWS``, so that no option is named twice. Type checkers see their fields as ``Any``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import OptionsError
from headrace.model.elsewhere import instead
from headrace.model.headers import NO_HEADERS, added, merged, packed, shown
from headrace.model.notation import utc
from headrace.model.option_checks import OptionRow, Travel
from headrace.model.options import ROWS, TASK_ONLY
from headrace.model.retry import Retry

# Which attribute of a Retry each part of the option ``retries`` is, and its type.
RETRY_PARTS: dict[str, tuple[str, Any]] = {
    "retries": ("max", int),
    "retry_delay": ("delay", float | tuple[float, ...]),
    "retry_factor": ("factor", float),
    "retry_max_delay": ("max_delay", float),
    "retry_jitter": ("jitter", float),
}


def traveling(*ways: Travel) -> dict[str, OptionRow]:
    return {name: row for name, row in ROWS.items() if row.travels in ways}


OVERRIDES = traveling("override")
# Fields of a record that differ from job to job; each has its queue.
FIELDS = {name: row for name, row in traveling("field").items() if name != "queue"}
# Options that a claim must read of the record of a job that has them.
CLAIMED = tuple(name for name, row in ROWS.items() if row.claimed)
# Of those that a record has, what no claim tells: the budget has a place of its own in the facts of a node.
UNTOLD = tuple(name for name, row in FIELDS.items() if not row.claimed and name != "max_crashes")

if TYPE_CHECKING:

    class _Computed(msgspec.Struct, frozen=True):
        def __getattr__(self, name: str) -> Any: ...

    class Overrides(_Computed, frozen=True):
        """What one job asks for instead of its task's options; travels in the record's ``options`` field.

        A field for each option that travels so, and each part of ``retries``. Seconds. None means: as the task says.
        """

        def __init__(self, *values: Any, **named: Any) -> None: ...

    class Options(_Computed, frozen=True):
        """Checked options, a field for each: as the rows of the table check them.

        Attributes:
            overrides: what was asked for a job rather than by its task: only that travels with the job.
        """

        def __init__(self, *values: Any, **named: Any) -> None: ...

    class Form(_Computed, frozen=True):
        """What the jobs of one task with the same options share: all but id and arguments.

        A field for each option that a record has or that the script which stores the job learns.

        Attributes:
            task: the task's name.
            options: MessagePack of :class:`Overrides`, empty when there are none.
            headers: as :func:`headrace.model.headers.packed` gives them; empty for none.
        """

        def __init__(self, *values: Any, **named: Any) -> None: ...

else:
    _parts = {name: kind for name, (_, kind) in RETRY_PARTS.items()}
    _own = _parts | {name: row.kind for name, row in OVERRIDES.items() if name != "retries"}
    _renamed = {name: row.stored for name, row in OVERRIDES.items() if row.stored}
    _fields = [(name, kind | None, None) for name, kind in _own.items()]
    Overrides = msgspec.defstruct(
        "Overrides", _fields, frozen=True, omit_defaults=True, kw_only=True, rename=_renamed, module=__name__
    )
    _fields = [*((name, Any, row.default) for name, row in ROWS.items()), ("overrides", Overrides, Overrides())]
    Options = msgspec.defstruct("Options", _fields, frozen=True, kw_only=True, module=__name__)
    _shared = {name: b"" if name == "headers" else row.default for name, row in traveling("field", "enqueue").items()}
    _fields = [("task", str), ("queue", str, _shared.pop("queue")), ("options", bytes, b"")]
    _fields += [(name, Any, default) for name, default in _shared.items()]
    Form = msgspec.defstruct("Form", _fields, frozen=True, gc=False, module=__name__)


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """One job to enqueue.

    Attributes:
        id: 21 characters, see :func:`headrace.model.ids.make_id`.
        args: MessagePack of ``[args, kwargs]``.
        form: everything else.
        name: of a unique job.
    """

    id: str
    args: bytes
    form: Form
    name: str = ""


_pack = msgspec.msgpack.Encoder().encode
_overrides = msgspec.msgpack.Decoder(Overrides)
_NOT_AFTER = ("delay", "at", "ordered", "unique")
_SHARED = tuple(name for name in Form.__struct_fields__ if name not in ("task", "options", "headers"))


def of_task(given: Mapping[str, Any]) -> Options:
    if given.get("request_id") is not None:
        raise OptionsError("request_id names one job: give it to task.options(request_id=...), not to the task")
    if given.get("after") is not None:
        raise OptionsError("after names jobs that one job follows: give it to task.options(after=...), not to the task")
    return _consistent(Options(**_checked(given)))


def of_call(task: Options, given: Mapping[str, Any]) -> Options:
    """A task's options, overridden for one or more jobs. Raises OptionsError: names the option and the right value."""
    for name in TASK_ONLY:
        if given.get(name) is not None:
            raise OptionsError(f"{name} belongs to the task, not to a job: give it to @app.task({name}=...)")
    checked = _checked(given)
    if "delay" in checked:
        checked["at"] = 0
    elif "at" in checked:
        checked["delay"] = 0
    if "headers" in checked:
        checked["headers"] = merged(task.headers, checked["headers"])
    travels: dict[str, Any] = {name: checked[name] for name in OVERRIDES if name in checked and name != "retries"}
    if given.get("retries") is not None:
        checked["retries"] = _retries(given["retries"], checked["retries"], task.retries)
        travels |= _numbers(checked["retries"], task.retries)
    checked["overrides"] = msgspec.structs.replace(task.overrides, **travels)
    return _consistent(msgspec.structs.replace(task, **checked))


def _retries(given: Retry | int, checked: Retry, task: Retry) -> Retry:
    if not isinstance(given, Retry):
        return dataclasses.replace(task, max=checked.max)
    if (given.on, given.never) != (Retry().on, Retry().never):
        raise OptionsError(
            "which exceptions are retried is the task's to say: give on and never to @app.task(retries=...)"
        )
    return checked


def _numbers(wanted: Retry, known: Retry) -> dict[str, float]:
    return {
        name: getattr(wanted, part)
        for name, (part, _) in RETRY_PARTS.items()
        if name == "retries" or getattr(wanted, part) != getattr(known, part)
    }


def _checked(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("at") is not None and given.get("delay") is not None:
        raise OptionsError("delay and at contradict each other: give the one or the other")
    if given.get("at_most_once") and given.get("max_crashes") is not None:
        raise OptionsError(
            "at_most_once and max_crashes contradict each other: a start that is lost fails the job; leave out one"
        )
    checked: dict[str, Any] = {}
    for name, value in given.items():
        row = ROWS.get(name)
        if row is None:
            raise OptionsError(f"there is no option {name!r}: {instead(name)}")
        if value is not None:
            checked[name] = row.check(name, value)
    return checked


def _consistent(options: Options) -> Options:
    if options.at_most_once and options.retries.max:
        raise OptionsError(
            "at_most_once and retries contradict each other: what may start once cannot be retried; give retries=0"
        )
    if options.timeout and options.hard_timeout and options.hard_timeout <= options.timeout:
        raise OptionsError(
            f"hard_timeout={options.hard_timeout:g} must be more than timeout={options.timeout:g}: the job needs "
            f"time to end by itself after the soft limit"
        )
    if options.unique:
        options.unique.check_times(delayed=bool(options.delay or options.at), expires=options.expires)
    if options.after_failure and not options.after:
        raise OptionsError("after_failure says how a job follows others: name these with after=")
    wrong = next((name for name in _NOT_AFTER if options.after and getattr(options, name)), "")
    if wrong:
        raise OptionsError(f"after and {wrong} contradict each other: each says when the job starts; leave out one")
    if options.expires and options.delay >= options.expires:
        raise OptionsError("expires must be more than delay: the job would expire before it becomes ready")
    return options


def form_of(task: str, options: Options) -> Form:
    """What the jobs of a task with these options share. Their ids must say it if they are ordered or unique."""
    return Form(
        task,
        options=b"" if options.overrides == Overrides() else _pack(options.overrides),
        headers=packed(added(options.headers, NO_HEADERS)),
        **{name: getattr(options, name) for name in _SHARED},
    )


def overrides_of(form: Form) -> Overrides:
    return _overrides.decode(form.options) if form.options else Overrides()


def asked(form: Form) -> dict[str, Any]:
    found: dict[str, Any] = {"queue": form.queue}
    for name in _SHARED:
        if name != "secrets" and (value := getattr(form, name)):
            unit = ROWS[name].unit
            found[name] = value / 1e6 if unit == "wait" else utc(value) if unit == "moment" else value
    own = msgspec.structs.asdict(overrides_of(form))
    return found | {name: value for name, value in own.items() if value is not None}


def changed(form: Form, given: Mapping[str, Any]) -> Form:
    own = overrides_of(form)
    known = Options(
        retries=Retry(max=own.retries or 0), timeout=own.timeout, hard_timeout=own.hard_timeout,
        headers=tuple(shown(form.headers).items()), overrides=own, **{name: getattr(form, name) for name in _SHARED},
    )  # fmt: skip
    options = of_call(known, given)
    retries = given.get("retries")
    form = form_of(form.task, options)
    if not isinstance(retries, Retry):
        return form
    # All of it: what equals the defaults need not be what the task says.
    numbers = {name: getattr(retries, part) for name, (part, _) in RETRY_PARTS.items()}
    return msgspec.structs.replace(form, options=_pack(msgspec.structs.replace(options.overrides, **numbers)))
