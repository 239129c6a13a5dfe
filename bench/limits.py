"""Limits: a rate that four workers keep together, one of which is killed, told from a ledger of tokens; drains; delays.

The starts are beside what the rate would have let start between the first and the last of them, so that neither the
length of the measurement nor its ends count.
"""

from __future__ import annotations

from bench.context import Context
from bench.figure import Bar, Figure
from bench.limit_delays import delays
from bench.limit_drain import drains
from bench.limit_peers import MISSING, bullmq
from bench.limit_tokens import tokens_of

_RATES, _SECONDS, _WORKERS = (10, 100, 1000, 10_000), 60, 4
_SECOND = 1_000_000
# Starts are made good that come late by up to this, in seconds: see headrace.Rate.
_SLACK = 0.01


def most_within(tokens: list[int], length: int) -> int:
    """The most of these sorted times in any window shorter than ``length``."""
    most = first = 0
    for last, token in enumerate(tokens):
        while token - tokens[first] >= length:
            first += 1
        most = max(most, last - first + 1)
    return most


def share_of(tokens: list[int], rate: int) -> float:
    """Of the starts that a rate lets follow the first of these sorted times until the last one, how many did."""
    return (len(tokens) - 1) / ((tokens[-1] - tokens[0]) / _SECOND * rate) if len(tokens) > 1 else 0.0


def _peer(context: Context, rate: int, seconds: int) -> list[Figure]:
    starts, name = bullmq(context, rate, seconds), f"BullMQ's limiter, {rate:,}/s"
    # It starts what a window has together, so the span between starts says nothing.
    share = None if starts is None else len(starts) / (rate * seconds)
    most = None if starts is None else most_within(starts, round((1 - _SLACK) * _SECOND))
    note = MISSING if starts is None else ""
    return [
        Figure(f"{name}: starts of those asked for", share, "share", note=note),
        Figure(f"{name}: most in any 0.99 s", most, "starts", note=note),
    ]


def run(context: Context) -> list[Figure]:
    """Of each rate: starts, and the most in any second less what is made good, each against what is asked for."""
    figures: list[Figure] = []
    seconds = _SECONDS // 6 if context.quick else _SECONDS
    for rate in _RATES:
        context.say(f"limits: {rate:,}/s for {seconds} s, {_WORKERS} workers, one killed")
        tokens = [start.token for start in tokens_of(context, rate, seconds, workers=_WORKERS, kill=True)]
        most = most_within(tokens, round((1 - _SLACK) * _SECOND))
        figures += [
            Figure(
                f"rate {rate:,}/s: starts of those asked for",
                share_of(tokens, rate),
                "share",
                bar=Bar("at least", 0.99),
            ),
            Figure(f"rate {rate:,}/s: most in any 0.99 s", most, "starts", bar=Bar("at most", rate)),
        ]
        figures += _peer(context, rate, seconds) if context.peers else []
    return [*figures, *drains(context), *delays(context)]
