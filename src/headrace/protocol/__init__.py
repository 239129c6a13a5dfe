"""Verbs as values: each function returns a :class:`headrace.script.Call` without I/O, clock or dice."""
