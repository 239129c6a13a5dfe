"""What Django asks of an app: its commands."""
