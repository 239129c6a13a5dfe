"""Statistics: counters and histograms by label and time, that cost the counted thing next to nothing.

``stats`` is the face, ``reading`` what it finds. A count goes ``buffer`` (merged in memory), ``flusher`` (by size, by
age, at the end), ``writer`` (into buckets, or a line of batches, over a ``broker`` if wanted), ``rows`` (its groups and
resolutions), and there ``protocol.stats_calls``; ``consumer`` and ``broker_consumer`` empty the lines.
``resolutions``, ``read_plan`` and ``histogram`` decide; they and ``rows`` are pure. Nothing here prints.
"""

from __future__ import annotations

from headrace.stats.buffer import Batch as Batch
from headrace.stats.buffer import Buffer as Buffer
from headrace.stats.histogram import Histogram as Histogram
from headrace.stats.reading import Bucket as Bucket
from headrace.stats.reading import Reading as Reading
from headrace.stats.resolutions import Event as Event
from headrace.stats.stats import Stats as Stats
