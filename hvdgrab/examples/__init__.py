"""Three real trainings: ``python -m hvdgrab.examples.NAME``, under any launcher or as one process."""
