"""The wrapper around every rank.  Standard library only: a rank must start quickly."""
