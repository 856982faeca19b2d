"""Start one of the examples on several ranks with ``mpirun`` and read what it measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from hvdgrab.config import ENVIRONMENT_VARIABLE, ORDERS, SINGLE_RANK_ORDERS, CompressionKind
from hvdgrab.errors import HvdGrabError
from hvdgrab.report import metrics
from hvdgrab.report.metrics import EpochRecord

EXAMPLES = ("digits", "m4_mlp", "lstm_wikitext2")
PROGRAMS = {**{name: f"hvdgrab.examples.{name}" for name in EXAMPLES}, "transformer": "hvdgrab.bench.transformer"}
"""What `hvdgrab-bench overhead` can start: the examples, and a model of ten million parameters."""
SIMULATED = tuple(order for order in ORDERS if order not in SINGLE_RANK_ORDERS)
"""Orders that `hvdgrab-bench simulate` can compare."""
_SHOWN = 3000  # characters of a failed run's output
_PATIENCE = 15.0  # seconds for mpirun to end its ranks


class BenchError(HvdGrabError, RuntimeError):
    """A benchmark's run failed, or did not measure what it was started for."""


@dataclass(frozen=True)
class Site:
    """How this machine starts ranks."""

    ranks: int
    oversubscribe: bool = False
    """Allow more ranks than cores (Open MPI wants to be told)."""
    allow_root: bool = False
    """Allow mpirun to run as root (Open MPI wants to be told)."""
    timeout: float = 3600.0
    """Seconds after which a run is ended."""

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command that runs this Python with ``arguments`` on every rank.

        Binding is off: ranks that happen to share a core are many times slower.
        """
        consent = [*(["--oversubscribe"] if self.oversubscribe else []), *(["--allow-run-as-root"] if self.allow_root else [])]
        return [mpirun(), *consent, "--bind-to", "none", "-np", str(self.ranks), sys.executable, *arguments]

    @property
    def world(self) -> int:
        """Number of ranks of a run."""
        return self.ranks

    @property
    def network(self) -> str:
        """What connects the ranks, in words."""
        return "one host, no network"

    def received(self) -> int | None:
        """Bytes that the card of the busiest host has received; None if there is no network."""
        return None


def mpirun() -> str:
    """The ``mpirun`` beside this interpreter, or else the one on PATH.

    Raises:
        BenchError: there is none.
    """
    beside = Path(sys.executable).parent
    found = shutil.which("mpirun", path=str(beside)) or shutil.which("mpirun")
    if found is None:
        raise BenchError(f"no mpirun beside {sys.executable} or on PATH: load the cluster's MPI module, or run 'make setup'")
    return found


@dataclass(frozen=True)
class Variant:
    """An order and, after a colon, how its pair differences travel: ``cd-grab:topk``."""

    order: str
    compression: str | None = None

    @classmethod
    def parse(cls, text: str) -> Variant:
        """From the text of a command line; `ValueError` where it is none."""
        order, _, compression = text.partition(":")
        if order not in ORDERS or (":" in text and compression not in get_args(CompressionKind)):
            raise ValueError(text)
        return cls(order, compression or None)

    def __str__(self) -> str:
        return self.order if self.compression is None else f"{self.order}:{self.compression}"

    @property
    def grab(self) -> dict[str, object]:
        """The settings beside the order, as a job's ``grab:`` section has them."""
        return {} if self.compression is None else {"compression": self.compression}


def run(
    site: Site, example: str, arguments: Sequence[str], grab: Mapping[str, object] | None = None
) -> tuple[list[EpochRecord], float]:
    """Run an example to its end in a job directory of its own: its epochs, and its wall-clock seconds.

    Args:
        site: how ranks are started.
        example: one of `PROGRAMS`.
        arguments: of the example.
        grab: settings of the ordering, as in a job's YAML.

    Raises:
        BenchError: it failed or took too long; the message ends with its last lines.
    """
    with tempfile.TemporaryDirectory(prefix="hvdgrab-bench-") as folder:
        started = time.monotonic()
        output, code = _wait(site.command(["-m", PROGRAMS[example], *arguments]), _environment(folder, grab or {}), site.timeout)
        seconds = time.monotonic() - started
        if code != 0:
            ended = f"did not end within {site.timeout:g} s" if code is None else f"ended with code {code}"
            raise BenchError(f"{example} {' '.join(arguments)} {ended}; its last lines:\n{output[-_SHOWN:]}")
        records = metrics.latest(metrics.read(Path(folder) / metrics.FILE_NAME).records)
    if not records:
        raise BenchError(f"{example} {' '.join(arguments)} wrote no {metrics.FILE_NAME}")
    return records, seconds


def _environment(folder: str, grab: Mapping[str, object]) -> dict[str, str]:
    """This process's environment, with one thread a rank and without what another job may have left in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HVDGRAB_JOB", "HVDGRAB_GRAB"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    settings = {ENVIRONMENT_VARIABLE: json.dumps(grab)} if grab else {}
    return {"OMP_NUM_THREADS": "1", **kept, **settings, "PATH": path, "HVDGRAB_JOB_DIR": folder}


def _wait(command: list[str], environment: dict[str, str], timeout: float) -> tuple[str, int | None]:
    """Output and exit code; None as code where the time ran out.  mpirun ends its ranks when it is asked to end."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=timeout)
        return output, process.returncode
    except subprocess.TimeoutExpired:
        return _end(process), None
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[str]) -> str:
    process.terminate()
    try:
        return process.communicate(timeout=_PATIENCE)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]
