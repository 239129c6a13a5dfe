"""What each Python that the suite starts does first: it hides the metrics of OpenTelemetry from the server's driver.

redis-py imports them wherever they are installed, as they are here for the tests of traces: that would be a fifth of
the start of some thousand programs.
"""

import os
import sys

if not any(name.startswith(("OTEL_", "HEADRACE_TRACES")) for name in os.environ):
    for name in ("opentelemetry.metrics", "opentelemetry.sdk.metrics"):
        sys.modules[name] = None  # type: ignore[assignment] # as where it is not installed
