"""What the processes of a worker have in common: signals, streams, hooks, memory, and the ties between them."""
