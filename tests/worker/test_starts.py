"""What a dispatcher and the store know of starts, compared. No server: the store is a list of requests that may be cut."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from headrace.model.job import Claim, Outcome
from headrace.protocol.consume import Held, settle
from headrace.protocol.keys import Keys
from headrace.worker.dispatcher import worker_state as module
from headrace.worker.dispatcher.worker_state import Repair, Starts, compare

KEYS = Keys()


def claim(token: int) -> Claim:
    return Claim(f"{token:022}", token, "q", 0, "t", b"")


@dataclass
class Side:
    """One dispatcher with its store: every request that the store applied, in order."""

    starts: Starts = field(default_factory=Starts)
    applied: list[tuple[str, int, list[int]]] = field(default_factory=list[tuple[str, int, list[int]]])
    number: int = 0
    token: int = 100

    def claim(self, count: int, *, answered: bool = True) -> None:
        self.number += 1
        tokens = [self.token + n for n in range(1, count + 1)]
        self.token += count
        self.applied.append(("claim", self.number, tokens))
        if answered:
            self.starts.took([claim(token) for token in tokens], self.number)

    def settle(self, count: int, *, answered: bool = True, now: float = 0.0) -> None:
        self.number += 1
        tokens = list(self.starts.held)[:count]
        batch = [(Outcome(f"{token:022}", token, "succeeded", b"\xcb\xff"), claim(token)) for token in tokens]
        call = settle(KEYS, "w", self.number, [(outcome, 0) for outcome, _ in batch], 0)
        self.starts.ended(batch, call, self.number, now)
        self.applied.append(("settle", self.number, tokens))
        if answered:
            self.starts.settled = self.number

    def store(self, cut: int = 10**9) -> Held:
        """What the store knows that applied so many requests and forgot the others."""
        held: list[int] = []
        claimed = first = settled = 0
        for verb, number, tokens in self.applied[:cut]:
            if verb == "claim":
                claimed, first, held = number, (tokens or [0])[0], held + tokens
            else:
                settled, held = number, [token for token in held if token not in tokens]
        return Held(claimed, first, settled, [(f"{token:022}", token) for token in held])


def tokens(rows: list[tuple[str, int]]) -> list[int]:
    return [token for _, token in rows]


def test_sides_that_agree_leave_nothing_to_do() -> None:
    side = Side()
    side.claim(3)
    side.settle(2)
    assert not compare(side.starts.view(), side.store())


def test_a_settle_that_was_forgotten_is_sent_again() -> None:
    side = Side()
    side.claim(3)
    side.settle(2)
    repair = compare(side.starts.view(), side.store(1))
    assert (repair.restore, repair.unknown) == ([], [])
    assert repair.again == [side.starts.view().sent[0]]


def test_a_claim_that_was_forgotten_is_restored_with_what_has_ended_since() -> None:
    side = Side()
    side.claim(3)
    side.settle(2)
    repair = compare(side.starts.view(), side.store(0))
    assert tokens(repair.restore) == [101, 102, 103]
    assert (len(repair.again), repair.unknown) == (1, [])


def test_a_claim_whose_answer_is_on_its_way_is_not_unknown() -> None:
    side = Side()
    side.claim(2)
    side.claim(2, answered=False)
    assert not compare(side.starts.view(), side.store())


def test_a_settle_that_was_never_answered_is_repeated_by_who_sent_it() -> None:
    side = Side()
    side.claim(2)
    side.settle(1, answered=False)
    assert not compare(side.starts.view(), side.store(1))
    assert not compare(side.starts.view(), side.store(2))


def test_what_nobody_knows_goes_back() -> None:
    side = Side()
    side.claim(2)
    side.starts.held.clear()
    assert tokens(compare(side.starts.view(), side.store()).unknown) == [101, 102]


def test_settles_are_kept_for_a_time_and_up_to_a_size() -> None:
    side = Side()
    for now in range(100):
        side.claim(1)
        side.settle(1, now=float(now))
    assert len(side.starts.view().sent) == module.KEEP + 1
    # What was forgotten here is not known to have ended: it goes back.
    assert tokens(compare(side.starts.view(), side.store(1)).unknown) == [101]


def test_large_results_are_kept_up_to_a_size() -> None:
    starts = Starts()
    for number in range(1, 41):
        outcome = Outcome(f"{number:022}", number, "succeeded", b"x" * (1 << 20))
        starts.ended([(outcome, claim(number))], settle(KEYS, "w", number, [(outcome, 0)], 0), number, 0.0)
    assert sum(sent.size for sent in starts.view().sent) <= module.KEEP_BYTES
    assert [sent.number for sent in starts.view().sent] == list(range(26, 41))


REQUESTS = st.lists(st.tuples(st.sampled_from(["claim", "settle"]), st.integers(0, 3)), max_size=12)


@given(REQUESTS, st.sampled_from(["all answered", "last claim lost", "last settle lost"]), st.data())
def test_wherever_history_is_cut_both_sides_agree_in_the_end(
    requests: list[tuple[str, int]], last: str, data: st.DataObject
) -> None:
    """Nothing is lost and nothing is unknown: what ran here is claimed again, what ended here is told again."""
    side = Side()
    for verb, count in requests:
        side.claim(count) if verb == "claim" else side.settle(count)
    if last == "last claim lost":
        side.claim(2, answered=False)
    elif last == "last settle lost":
        side.settle(2, answered=False)
    cut = data.draw(st.integers(0, len(side.applied)))
    view, store = side.starts.view(), side.store(cut)
    repair: Repair = compare(view, store)
    assert repair.unknown == []
    held = set(tokens(store.starts)) | set(tokens(repair.restore))
    told = {token for sent in view.sent if sent in repair.again for token in tokens(module.starts_of(sent.call))}
    assert told <= held
    waiting = {
        token for sent in view.sent if sent.number > view.settled for token in tokens(module.starts_of(sent.call))
    }
    coming = set(side.applied[-1][2]) if last == "last claim lost" and cut == len(side.applied) else set[int]()
    assert held - told - waiting - coming == set(view.held)
