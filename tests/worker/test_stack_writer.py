"""A process that is asked for its stacks writes them and lives on, whatever its threads do meanwhile."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from headrace.model.stacks import stacks_and_others

# Threads come and go, and their stacks grow and shrink all the time, also by way of C code.
BUSY = """
import os, select, sys, threading
from headrace.worker.runner.runner_process import answer_stacks

def deep(n):
    return max(deep(n - 1), 1, key=lambda x: x) if n else 0

both = threading.Barrier(3)

def go_on():
    both.wait()
    while True:
        deep(40)

def start_threads():
    while True:
        thread = threading.Thread(target=deep, args=(25,))
        thread.start()
        thread.join()

for target in (start_threads, start_threads, go_on, go_on):
    threading.Thread(target=target, daemon=True).start()
both.wait()
answer_stacks()
print(flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    pass
print("left", flush=True)
os._exit(0)
"""


def test_threads_that_run_meanwhile_do_not_end_the_process() -> None:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", BUSY], **pipes) as program:
        assert program.stdin
        assert program.stdout
        assert program.stderr
        program.stdout.readline()
        written = b""
        for turn in range(1, 401):
            wanted = written.count(b" in go_on\n") + 2
            program.send_signal(signal.SIGUSR2)
            # A signal that comes while the one before is still answered has no whole answer of its own.
            while written.count(b" in go_on\n") < wanted and select.select([program.stderr], [], [], 0.5)[0]:
                piece = os.read(program.stderr.fileno(), 1 << 16)
                assert piece, f"ended with {program.wait()} after signal {turn}"
                written += piece
        program.stdin.close()
        written += program.stderr.read()
        assert program.stdout.read() == b"left\n"
        assert program.wait() == 0
    stacks, others = stacks_and_others(written)
    assert stacks.count(b" in <module>\n") > 100
    assert stacks.count(b" in deep\n") > 100
    assert others == b""
