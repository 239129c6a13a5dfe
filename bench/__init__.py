"""Benchmarks: every figure beside its reference, in one run on one machine.

Imports nothing but the standard library here: the peers run these modules in a virtual environment of
their own.
"""
