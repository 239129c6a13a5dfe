"""What an autoscaler asks over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.admin.queues import Queues
from headrace.errors import OptionsError
from headrace.stats.http_server import Answer, Page


def scale_page(queues: Queues) -> Page:
    """``/scale?queue=mail&target=30``: JSON of :class:`headrace.admin.queue_scale.QueueLoad`.

    An unusable name or target is answered with 400, a store that is away with 503.
    """

    def page(asked: Mapping[str, str]) -> Answer:
        if not asked.get("queue"):
            raise OptionsError("say which queue: /scale?queue=mail&target=30")
        try:
            target = float(asked.get("target", "30"))
        except ValueError:
            raise OptionsError(f"target={asked['target']!r} is not a number of seconds") from None
        found = queues[asked["queue"]].load(target)
        return Answer(200, msgspec.json.encode(found).decode() + "\n", "application/json")

    return page
