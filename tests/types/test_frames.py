"""DataFrames arrive as they were sent, by every way that a value can take; they need pyarrow."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import Any

import pytest

from headrace import Headrace
from headrace.errors import ArgumentError
from headrace.testing.kit import Kit
from tests.types import test_values
from tests.types.test_values import kit, ways

__all__ = ["kit"]

pd: Any = importlib.import_module("pandas")


def frame() -> Any:
    columns = {
        "whole": [1, 2], "text": ["x", None], "real": [0.5, float("nan")], "yes": [True, False],
        "at": pd.to_datetime(["2030-01-02", "2031-01-02"]).tz_localize("Europe/Berlin"),
        "kind": pd.Categorical(["u", "v"], categories=["v", "u"]), "perhaps": pd.array([1, None], dtype="Int64"),
    }  # fmt: skip
    return pd.DataFrame(columns, index=pd.Index(["r", "s"], name="row"))


def test_a_frame_arrives_by_every_way(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    def same(found: Any, sent: Any) -> bool:
        pd.testing.assert_frame_equal(found, sent)
        return True

    monkeypatch.setattr(test_values, "same_value", same)
    all_ways = ways(kit.app, pd.DataFrame)
    for sent in (frame(), pd.DataFrame({3: [1], 4: [2]}), pd.DataFrame()):
        told = [way(sent) for way in all_ways]
        kit.drain()
        for tell in told:
            for found in tell():
                same(found, sent)


@pytest.mark.parametrize(
    "sent",
    [
        lambda: pd.DataFrame({"a": [1], 2: [3]}),
        lambda: type("Mine", (pd.DataFrame,), {})({"a": [1]}),
        lambda: pd.DataFrame({"a": [object()]}),
        lambda: b"no frame",
        lambda: 7,
    ],
)
def test_what_would_not_arrive_is_refused(sent: Any) -> None:
    def take(x: Any) -> None: ...

    take.__annotations__["x"] = pd.DataFrame
    with pytest.raises(ArgumentError, match=r"argument 'x' of take.*(DataFrame|Mine)"):
        Headrace("redis://localhost:1/0").task(name="take")(take).job(sent())


def test_without_pyarrow_the_error_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; import pandas; from headrace import Headrace\n"
        "def take(x: pandas.DataFrame) -> None: ...\n"
        "try: Headrace('redis://localhost:1/0').task(name='take')(take).job(pandas.DataFrame({'a': [1]}))\n"
        "except Exception as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install pyarrow" in run.stdout
