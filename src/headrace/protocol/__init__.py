"""Verbs as values: each function returns a :class:`headrace.script.Call` and does no I/O, reads no clock, rolls no dice."""
