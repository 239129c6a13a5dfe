"""Facts and decisions: jobs, workflows, options, values, identifiers. No I/O, no clock, no randomness."""
