"""Start a worker and a program beside it: ``start.py WORKER -- PROGRAM``. The worker ends with the program."""

import signal
import subprocess
import sys


def main() -> int:
    # An interrupt and a request to end raise SystemExit, so that both programs get the time to finish.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    # Groups of their own: else the terminal would interrupt the worker a second time.
    split = sys.argv.index("--")
    worker = subprocess.Popen(sys.argv[1:split], process_group=0)
    program = subprocess.Popen(sys.argv[split + 1 :], process_group=0)
    try:
        return program.wait()
    finally:
        for process in (program, worker):
            process.terminate()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
