"""The process that forks, watches and ends all others of a worker."""
