"""The arguments of a stored job by their names, and changed."""

from __future__ import annotations

import msgspec
import pytest

from headrace.errors import OptionsError
from headrace.model.job_record import PlainReader, ValueReader
from headrace.model.signature import Signature
from headrace.model.type_registry import Types
from headrace.protocol.produce import record_of
from headrace.tasks.edited_job import StoredArguments, arguments_of


def total(first: int, *more: int, **named: int) -> None:
    del first, more, named


READER = Signature("total", total, Types())


def stored(reader: ValueReader, *args: int, **kwargs: int) -> StoredArguments:
    packed = msgspec.msgpack.encode([args, kwargs])
    return arguments_of(record_of("0" * 21, 0, {"task": b"total", "st": b"succeeded", "args": packed}), reader)


@pytest.mark.parametrize("more", range(4))
def test_what_a_star_takes_is_called_by_its_numbers_however_many_there_are(more: int) -> None:
    found = stored(READER, 7, *range(more), other=5)
    assert list(found.places) == ["first", *map(str, range(2, more + 2)), "other"]
    for number in range(more):
        args, kwargs = found.changed({str(number + 2): 99})
        assert args == [7, *(99 if n == number else n for n in range(more))]
        assert kwargs == {"other": 5}


def test_where_the_task_is_not_known_each_position_is_called_by_its_number() -> None:
    found = stored(PlainReader("total"), 7, 8, other=5)
    assert found.by_name == {"1": 7, "2": 8, "other": 5}
    with pytest.raises(OptionsError, match="no argument 3: it has 1, 2, other"):
        found.changed({"3": 1})
    for wrong in ({1: 3}, ["first"], "first"):
        with pytest.raises(OptionsError, match="changes are a dict"):
            found.changed(wrong)  # type: ignore[arg-type]
