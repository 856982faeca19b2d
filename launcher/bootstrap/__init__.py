"""Sets up an environment that hvdgrab can train in: virtual environment, torch, MPI, mpi4py and Horovod built against that MPI.

Standard library only: it runs under the system's Python, before anything is installed (``python3 -m launcher.bootstrap``).
"""
