"""Benchmarks: ``hvdgrab-bench`` or ``python -m hvdgrab.bench``."""
