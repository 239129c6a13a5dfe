"""What became of jobs until the store is told: gathered, logged and counted. Decides; does no I/O."""
