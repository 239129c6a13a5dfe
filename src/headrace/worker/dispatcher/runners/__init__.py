"""Which runners there are, what each holds, and which job goes to which of them. Decides; does no I/O."""
