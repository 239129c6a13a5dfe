"""Verbs as values: each function returns a :class:`headrace.protocol.script.Call` without I/O, clock or dice."""
