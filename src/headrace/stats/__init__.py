"""Statistics: counters and histograms by label and time, that cost the counted thing next to nothing.

``stats`` is the face, ``reading`` what it finds. A count goes ``buffer`` (merged in memory), ``writer`` (by size, by
age, at the end: into buckets, or a line of batches, over a ``broker`` if wanted), and there ``protocol.stats_calls``.
``resolutions`` decides; it is pure. Nothing here prints.
"""

from __future__ import annotations

from headrace.stats.buffer import Batch as Batch
from headrace.stats.buffer import Buffer as Buffer
from headrace.stats.reading import Bucket as Bucket
from headrace.stats.reading import Reading as Reading
from headrace.stats.resolutions import Event as Event
from headrace.stats.resolutions import Histogram as Histogram
from headrace.stats.stats import Stats as Stats
