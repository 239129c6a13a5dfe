"""The watcher: a process of the worker that calls hooks with events and looks at the figures of alarms."""
