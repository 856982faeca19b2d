"""Processes: the wrapper around every rank, groups that can be stopped as a whole, and the search for what is left of a job.

Standard library only, apart from the search: a rank must start quickly.
"""
