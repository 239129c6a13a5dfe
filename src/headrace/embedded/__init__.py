"""The private server of a project: started by whoever needs it first, gone when the last one has left.

Owns the life of that server process and the files around it. Must not speak to the store beyond asking
whether it lives, and must not be imported by anything that was given a URL. The modules here use the standard
library only: the guard, a small process of its own, runs them without the rest of Headrace and without
site-packages.

Who does what: ``handle`` attaches, ``control`` starts, stops and describes, ``launch`` waits for a guard,
``guard`` is that process, ``server`` its child, ``project`` finds the directory, ``paths`` are the files in it,
``locks`` the kernel's word on who lives, ``resp`` one question to a server, ``aof`` damaged or alien data, ``binary``
the program that is run.
"""

from headrace.embedded.control import Status, path, require, start, status, stop
from headrace.embedded.handle import Embedded, attach

__all__ = ["Embedded", "Status", "attach", "path", "require", "start", "status", "stop"]
