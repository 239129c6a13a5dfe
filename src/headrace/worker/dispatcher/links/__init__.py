"""The dispatcher's edges: the store, the supervisor, the runners. They perform actions and append events."""
