"""What a dispatcher does for the store beside claiming and settling. Decides; does no I/O."""
