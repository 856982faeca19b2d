"""Errors of hvdgrab.

Every error says what is wrong, where (rank, parameter, unit), and what to do::

    HvdGrabError
    ├── ConfigError           a setting is wrong, or two sources disagree about it
    ├── UsageError            the training script uses the library in a way that cannot work
    ├── WorldError            ranks, sizes, MPI and Horovod do not agree with each other
    ├── StateError            a saved state does not fit this run
    ├── PayloadError          bytes are damaged, or no payload of the compressor that expands them
    ├── CommunicationError    a message between ranks failed or did not match
    │   └── CommunicatorClosed    the communicator was closed while a call was waiting
    └── ConsistencyError      ranks that must agree do not
"""

from __future__ import annotations


class HvdGrabError(Exception):
    """Base class: catch this to catch every error that hvdgrab raises on purpose."""


class ConfigError(HvdGrabError, ValueError):
    """A setting is wrong, or an explicit argument contradicts the job's YAML."""


class UsageError(HvdGrabError, RuntimeError):
    """The training script uses the sampler or the optimizer in a way that cannot work."""


class WorldError(HvdGrabError, RuntimeError):
    """The processes do not form the world that the script expects."""


class StateError(HvdGrabError, ValueError):
    """A saved state does not fit this run: another model, dataset, world or version."""


class PayloadError(HvdGrabError, ValueError):
    """Bytes are no payload of the compressor that expands them, or were damaged on their way."""


class CommunicationError(HvdGrabError, RuntimeError):
    """A message between ranks failed, or another one was expected."""


class ConsistencyError(HvdGrabError, RuntimeError):
    """Ranks that must hold the same value hold different ones; the message names them."""


class CommunicatorClosed(CommunicationError):
    """The communicator was closed while a call was waiting."""
