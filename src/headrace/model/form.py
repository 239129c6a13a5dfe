"""From the options of a job to what is stored of them, and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from headrace.model.headers import NO_HEADERS, added, packed, shown
from headrace.model.job import Form, Overrides
from headrace.model.options import Options, of_call
from headrace.model.retry import Retry

_pack = msgspec.msgpack.Encoder().encode
_overrides = msgspec.msgpack.Decoder(Overrides)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def form_of(task: str, options: Options) -> Form:
    """What the jobs of a task with these options share. Their ids must say it if they are ordered."""
    return Form(
        task,
        options.queue,
        b"" if options.overrides == Overrides() else _pack(options.overrides),
        options.priority,
        options.delay,
        options.at,
        options.expires,
        options.max_crashes,
        options.at_most_once,
        options.key,
        options.ordered,
        packed(added(options.headers, NO_HEADERS)),
    )


def overrides_of(form: Form) -> Overrides:
    """What jobs of this form ask for instead of their task's options."""
    return _overrides.decode(form.options) if form.options else Overrides()


def asked(form: Form) -> dict[str, Any]:
    """What a form asks for, by the names of options; durations are seconds."""
    found: dict[str, Any] = {"queue": form.queue}
    plain = {
        "priority": form.priority,
        "delay": form.delay / 1e6,
        "expires": form.expires / 1e6,
        "max_crashes": form.max_crashes,
        "at_most_once": form.once,
        "key": form.key,
        "ordered": form.ordered,
    }
    found |= {name: value for name, value in plain.items() if value}
    if form.at:
        found["at"] = _EPOCH + timedelta(microseconds=form.at)
    own = msgspec.structs.asdict(overrides_of(form))
    return found | {name: value for name, value in own.items() if value is not None}


def changed(form: Form, given: Mapping[str, Any]) -> Form:
    """A form with some options changed.

    Raises:
        OptionsError: one is out of range, or contradicts another.
    """
    own = overrides_of(form)
    known = Options(
        queue=form.queue,
        priority=form.priority,
        delay=form.delay,
        at=form.at,
        expires=form.expires,
        retries=Retry(max=own.retries or 0),
        timeout=own.timeout,
        hard_timeout=own.hard_timeout,
        max_crashes=form.max_crashes,
        at_most_once=form.once,
        key=form.key,
        ordered=form.ordered,
        headers=tuple(shown(form.headers).items()),
        overrides=own,
    )
    options = of_call(known, given)
    retries = given.get("retries")
    form = form_of(form.task, options)
    if not isinstance(retries, Retry):
        return form
    # All of it: what equals the defaults need not be what the task says.
    numbers = {
        "retries": retries.max, "retry_delay": retries.delay, "retry_factor": retries.factor,
        "retry_max_delay": retries.max_delay, "retry_jitter": retries.jitter,
    }  # fmt: skip
    return msgspec.structs.replace(form, options=_pack(msgspec.structs.replace(options.overrides, **numbers)))
