"""A workflow: read the sales of each shop side by side, add them up, and report. ``pipeline.py`` runs it once."""

import csv
from collections import Counter
from pathlib import Path

from headrace import Flow, Headrace

DATA = Path(__file__).parent / "data"

app = Headrace()


@app.task(retries=3, timeout=60)
def read(name: str) -> dict[str, int]:
    """Add up the sales of one shop by item."""
    sold: Counter[str] = Counter()
    with (DATA / name).open(newline="") as lines:
        for row in csv.DictReader(lines):
            sold[row["item"]] += int(row["pieces"])
    return dict(sold)


@app.task
def total(shops: list[dict[str, int]]) -> dict[str, int]:
    """Add up the sales of all shops."""
    return dict(sum((Counter(shop) for shop in shops), Counter[str]()))


@app.task
def report(sold: dict[str, int]) -> str:
    return "\n".join(f"{item:8} {pieces:4}" for item, pieces in sorted(sold.items()))


@app.workflow
def sales(flow: Flow, names: list[str]) -> None:
    shops = [flow.run(read, name) for name in names]
    flow.run(report, flow.run(total, shops), name="report")


if __name__ == "__main__":
    run = sales.create(sorted(path.name for path in DATA.glob("*.csv")))
    run.start()
    run.wait(timeout=60)
    print(run.outputs()["report"])
