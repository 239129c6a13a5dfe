"""Sixty mapped classes that refer to each other, and a job that needs them configured, in a fork of its own."""

from __future__ import annotations

import os
from typing import Any

from sqlalchemy import ForeignKey, String, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from bench.tally import tick
from headrace import Headrace

app = Headrace(os.environ["HEADRACE_URL"])

_COUNT = 60


class Model(DeclarativeBase):
    """The classes' registry."""


def _model(number: int) -> type[Any]:
    body: dict[str, Any] = {"__tablename__": f"t{number}", "__annotations__": {"id": Mapped[int]}}
    body["id"] = mapped_column(primary_key=True)
    body |= {f"c{column}": mapped_column(String(30)) for column in range(8)}
    if number:
        body["up_id"] = mapped_column(ForeignKey(f"t{number - 1}.id"))
        body["up"] = relationship(f"M{number - 1}", back_populates="down")
    if number < _COUNT - 1:
        body["down"] = relationship(f"M{number + 1}", back_populates="up")
    return type(f"M{number}", (Model,), body)


MODELS = [_model(number) for number in range(_COUNT)]


@app.task(result_ttl=0, kind="fork")
def report() -> None:
    # What a first query does: the mappers of all classes are configured, unless they are already.
    select(MODELS[3]).compile()
    tick()


def bulk(count: int) -> None:
    app.enqueue_many(report.job() for _ in range(count))
