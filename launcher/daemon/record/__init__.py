"""The daemon's record of its jobs."""
