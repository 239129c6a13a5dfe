"""What Prometheus is told of jobs, queues and workers; :mod:`headrace.stats.prometheus` is the server."""
