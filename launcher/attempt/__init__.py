"""One attempt while it runs: its supervisor, the wrappers of its ranks, its other hosts."""
