"""Tests of the launcher.  Invented examples may take their time: a busy machine is no fault."""

from hypothesis import settings

settings.register_profile("launcher", deadline=None)
settings.load_profile("launcher")
