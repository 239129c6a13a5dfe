"""Find the application that a command line names."""

from __future__ import annotations

from headrace.app import Headrace


def load(target: str) -> Headrace:
    """The application of ``module:attribute``; raises AppImportError."""
    raise NotImplementedError(target)
