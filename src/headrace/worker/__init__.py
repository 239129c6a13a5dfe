"""The worker: supervisor, dispatcher and runners; see docs/design/worker.md for who does what and why."""
