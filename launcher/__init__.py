"""The launcher: from one YAML file to ranks that are really there.

Imports neither torch nor MPI, and from hvdgrab only its settings and errors.
"""
