"""Tickets decide who owns work that was sent ahead to a runner.

For each job the dispatcher writes a ticket of two bytes into a pipe, *before* it sends the job; the runner (of several
threads, the one that would start it) reads one before it starts a job; the dispatcher, which holds the read end too,
takes work back by reading tickets. The kernel gives each to exactly one of them, since all read and write whole ones,
so a job is started by the runner or taken back, never both and never neither; and the tickets left in a dead runner's
pipe say which jobs it had not started. Taken back are always the last jobs sent.

A ticket can overtake the recalls that were sent before it, since they travel apart; the runner would then start a
recalled job with the ticket of a later one. So each ticket says how many recalls came before it, and the runner waits
for them.
"""

from __future__ import annotations

import os

from headrace.worker.channel import Closed

SIZE = 2
"""Bytes of a ticket."""
_COUNTS = 1 << 8 * SIZE


def take_ticket(descriptor: int) -> int | None:
    """Runner: the right to start one job; None when it was taken back. The descriptor does not block.

    Returns:
        how many recalls had been sent when it was given, modulo 65,536: start nothing before that many have arrived.

    Raises:
        Closed: nobody gives tickets any more.
    """
    try:
        ticket = os.read(descriptor, SIZE)
    except BlockingIOError:
        return None
    if not ticket:
        raise Closed
    return number(ticket)


def number(ticket: bytes) -> int:
    return int.from_bytes(ticket, "little")


def early(ticket: int, heard: int) -> bool:
    """Runner: whether a ticket has overtaken recalls, of which ``heard`` came: its job begins when the rest has.

    Fewer than 32,768 recalls are under way: each is a message that waits in a socket.
    """
    return 0 < (ticket - heard) % _COUNTS < _COUNTS // 2


def take_back(descriptor: int, most: int) -> int:
    """Dispatcher: take back the right to start up to ``most`` jobs; how many were still to be had."""
    try:
        return len(os.read(descriptor, SIZE * most)) // SIZE if most > 0 else 0
    except BlockingIOError:
        return 0


def give_tickets(descriptor: int, count: int, recalls: int) -> None:
    """Dispatcher: allow ``count`` more starts; call before sending the jobs. Windows stay far below a pipe's room.

    Args:
        recalls: how many recalls this runner was sent.
    """
    os.write(descriptor, (recalls % _COUNTS).to_bytes(SIZE, "little") * count)
