"""What operators do to limits: each is a form, done by the application's own verb."""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.exceptions import HTTPException

from headrace.dashboard.dashboard_site import DashboardSite
from headrace.model.limit_rules import Concurrency, Rate

Form = Mapping[str, str]


def number_in(form: Form, field: str) -> float | None:
    """A number of a form; None where its field is empty."""
    text = form.get(field, "").strip()
    try:
        number = float(text) if text else None
    except ValueError:
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise HTTPException(400, f"{text[:40]!r} is not a number.")
    return number


def whole_in(form: Form, field: str) -> int | None:
    """A whole number of a form; see :func:`number_in`."""
    number = number_in(form, field)
    if number is not None and not number.is_integer():
        raise HTTPException(400, f"{number:g} is not a whole number.")
    return None if number is None else int(number)


def _of(name: str, form: Form) -> tuple[str, str | None, float | None]:
    """What the form is about, in words; which value, and for how many seconds."""
    value, minutes = form.get("value"), number_in(form, "minutes")
    words = f"Limit {name}" if value is None else f"Value {value or '(none)'} of limit {name}"
    return words, value, None if minutes is None else minutes * 60


async def pause_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, seconds = _of(name, form)
    new = await site.app.limits[name].apause(value, seconds)
    end = "until it is resumed" if seconds is None else f"for {seconds / 60:g} min"
    return f"{what} is paused {end}." if new else f"{what} was paused already; now it is so {end}."


async def resume_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, _ = _of(name, form)
    return f"{what} goes on." if await site.app.limits[name].aresume(value) else f"{what} was not paused."


async def set_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, seconds = _of(name, form)
    starts, per, most = number_in(form, "starts"), number_in(form, "per"), whole_in(form, "most")
    given: list[Rate | Concurrency] = []
    if starts is not None:
        given.append(Rate(int(starts) if starts.is_integer() else starts, 1 if per is None else per))
    if most is not None:
        given.append(Concurrency(most))
    if not given:
        raise HTTPException(400, "Give a number of starts, or of jobs at once.")
    await site.app.limits[name].aset(*given, value=value, duration=seconds)
    end = "until it is unset" if seconds is None else f"for {seconds / 60:g} min"
    return f"{what} has other numbers than code declares, {end}."


async def unset_limit(site: DashboardSite, name: str, form: Form) -> str:
    what, value, _ = _of(name, form)
    changed = await site.app.limits[name].aunset(value)
    return f"{what} is as code declares it." if changed else f"{what} was as code declares it."


LIMIT_ACTS = {"pause": pause_limit, "resume": resume_limit, "set": set_limit, "unset": unset_limit}
