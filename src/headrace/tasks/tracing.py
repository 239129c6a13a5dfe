"""Whether an application traces: what does it is loaded only then."""

from __future__ import annotations

from collections.abc import Callable

from headrace.store.client import Client


def set_up(client: Client, closers: list[Callable[[], object]]) -> None:
    """Have an application trace what it stores and runs, if its settings say so.

    Args:
        closers: what its runners call before they leave.

    Raises:
        SettingsError: the extra ``otel`` is not installed.
    """
    if client.settings.traces != "off":
        from headrace.tasks import traces

        traces.install(client, closers)
