"""Tasks and jobs as a program uses them: define, enqueue, pack, ask for a result."""
