"""The private server of a project: the first program that needs it starts it, and it ends after the last one.

Must not be imported by a program that was given a URL. The modules use the standard library only: the guard, a small
process of its own, runs them without the rest of Headrace and without site-packages.
"""

from headrace.embedded.handle import Embedded, Status, attach, path, require, start, status, stop

__all__ = ["Embedded", "Status", "attach", "path", "require", "start", "status", "stop"]
