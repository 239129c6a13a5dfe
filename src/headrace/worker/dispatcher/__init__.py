"""The process that claims jobs, hands them to runners and settles them: see docs/design/dispatcher.md."""
