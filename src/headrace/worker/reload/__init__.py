"""New code takes the place of the old while the worker works."""
