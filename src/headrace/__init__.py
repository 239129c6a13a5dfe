"""Background jobs and DAG workflows for Python on Redis and Valkey."""

__version__ = "0.1.0"
