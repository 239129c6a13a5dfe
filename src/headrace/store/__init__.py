"""The store: connections to one server, a Store for threads and one for event loops, and waits for ends."""
