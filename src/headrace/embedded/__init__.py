"""The private server of a project: the first program that needs it starts it, and it ends after the last one.

Owns the life of that server process and the files around it. Must not speak to the store beyond a check that it lives,
and must not be imported by a program that was given a URL. The modules use the standard library only: the guard, a
small process of its own, runs them without the rest of Headrace and without site-packages.

``handle`` starts what does not run, attaches, does the commands; ``guard`` runs the server; ``paths`` are the files,
``locks`` what the kernel knows of other processes, ``resp`` one question to a server, ``binary`` the server program.
"""

from headrace.embedded.handle import Embedded, Status, attach, path, require, start, status, stop

__all__ = ["Embedded", "Status", "attach", "path", "require", "start", "status", "stop"]
