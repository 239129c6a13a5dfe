"""What Prometheus is told of jobs, queues and workers, and the rules and the board that are made of the same table.

``metric_families`` is the table and its reading, which it hands to Prometheus; ``alert_rules`` and
``grafana_board`` are made of the table's names. The server itself is :mod:`headrace.stats.prometheus`.
"""
