"""SLURM: what is asked of it, how its answers are read, and what runs inside its jobs.

`launcher.starters.slurm` submits and watches, `launcher.backends.srun` starts ranks inside an allocation.
"""
