"""SLURM: what is asked of it, how its answers are read, and what runs inside its jobs.

`launcher.slurm.starter` submits and watches, `launcher.slurm.start_method` starts ranks inside an allocation.
"""
