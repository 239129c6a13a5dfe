"""What is done once before the fork instead of once in each runner, and what finds out about it."""
