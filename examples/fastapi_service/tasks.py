"""The application and its tasks: the site and the worker import this module."""

from collections import Counter

from headrace import Headrace

app = Headrace()


@app.task(retries=3, timeout=30)
def count_words(text: str) -> dict[str, int]:
    return dict(Counter(text.lower().split()))
