"""Workflows as a program uses them: define graphs, create runs, ask for nodes."""
