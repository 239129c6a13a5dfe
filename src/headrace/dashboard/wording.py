"""How figures, durations, times and ids are written on pages. Pure; what returns ``Markup`` escapes its texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlencode

from markupsafe import Markup

from headrace.model import notation
from headrace.model.notation import shown_share, utc
from headrace.picture.theme import look

_STATE = Markup(
    '<span class="state s-{0}"><svg class="glyph" viewBox="0 0 12 12" aria-hidden="true"><path d="{1}"/></svg>{0}'
    "</span>"
)
_TIME = Markup('<time datetime="{iso}" title="{utc}" data-at="{at}">{text}</time>')
# Seconds by which a row may be read later than the frame beside it.
FRESHER = 3
# What stands where there is nothing to say.
DASH = "\N{EN DASH}"
_NONE = Markup('<span class="none">{}</span>').format(DASH)


def count(number: float) -> str:
    """``12,345``; a share of one keeps two digits."""
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:,.2g}"


def short(number: float) -> str:
    """A figure in at most five characters: ``12``, ``3.4k``, ``1.2M``."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(number) >= size * 0.9995:
            amount = number / size
            return f"{amount:.1f}{unit}" if amount < 99.95 else f"{amount:.0f}{unit}"
    return count(round(number, 2) if abs(number) < 10 else round(number))


def percent(share: float) -> str:
    """``0 %``, ``0.3 %``, ``12 %``."""
    amount = 100 * shown_share(share)
    return f"{amount:.1f} %" if 0 < amount < 9.95 else f"{amount:.0f} %"


def duration(seconds: float | None) -> str:
    """Both units of a long one; a dash where it is not known."""
    return DASH if seconds is None else notation.duration(seconds * 1e6)


def distance(microseconds: int, now: int) -> str:
    """``3 min ago`` or ``in 3 min``: one unit, since a list is read at a glance."""
    away = (now - microseconds) / 1e6
    # A row may be fresher than the frame whose time this is, so it is not in the future.
    words = "now" if -FRESHER < away < 1 else _one_unit(abs(away))
    return words if words == "now" else f"{words} ago" if away > 0 else f"in {words}"


def _one_unit(seconds: float) -> str:
    for unit, length, most in (("s", 1, 90), ("min", 60, 90), ("h", 3600, 36)):
        if seconds < length * most:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:,.0f} d"


def when(microseconds: int, now: int) -> Markup:
    """A time as its distance, with UTC on focus; the page's script keeps the distance up to date."""
    at = utc(microseconds)
    if at is None:
        return _NONE
    full = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    return _TIME.format(iso=at.isoformat(timespec="milliseconds"), utc=full, at=microseconds // 1000,
                        text=distance(microseconds, now))  # fmt: skip


def stamp(microseconds: int) -> str:
    """A time in UTC to the millisecond."""
    at = utc(microseconds)
    return DASH if at is None else f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} UTC"


def minute(microseconds: int) -> str:
    """A time in UTC to the minute, as a field of a form has it."""
    at = utc(microseconds)
    return "" if at is None else f"{at:%Y-%m-%dT%H:%M}"


def state(name: str) -> Markup:
    """A state as an icon and its word: its colour is never alone."""
    return _STATE.format(name, look(name).icon)


def cut(text: str, longest: int = 120) -> str:
    """A text on one line, at most so long."""
    line = " ".join(text.split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def last_part(name: str) -> str:
    """``fetch`` of ``tasks.fetch``."""
    return name.rpartition(".")[2] or name


def quoted(name: object) -> str:
    """A name as a part of a link. At the end of a path ``.json`` asks for JSON, so within a name it is escaped."""
    return quoted_path(str(name), safe="")


def quoted_path(path: str, safe: str = "/") -> str:
    """A path as a link to the page of it; see :func:`quoted`."""
    return quote(path, safe=safe).replace(".json", "%2Ejson").replace(".csv", "%2Ecsv")


def quoted_base(root: str) -> str:
    """The path below which a dashboard is, as links and cookies have it: browsers escape no more of it than this."""
    return quote(root.rstrip("/"), safe="/!$&'()*+,:=@")


def jobs_wait(number: int) -> str:
    """``1 job waits``, ``2,000 jobs wait``."""
    return f"{number:,} job waits" if number == 1 else f"{number:,} jobs wait"


def plural(number: int, noun: str, several: str = "") -> str:
    """``1 job``, ``2,000 jobs``."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def link(path: str, query: Mapping[str, object] | Sequence[tuple[str, object]] = ()) -> str:
    """A path with a query, without the parts that are empty."""
    pairs = query.items() if isinstance(query, Mapping) else query
    text = urlencode([(name, str(value)) for name, value in pairs if value not in (None, "")])
    return f"{path}?{text}" if text else path
