"""What an operator and a program ask of jobs, queues and workers: by id, counted, in bounded pages, and the verbs."""
