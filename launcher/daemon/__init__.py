"""The daemon: the queue, the starts, the restarts and the ends of jobs."""
