"""What benchmarks measure (cases, orders, examples), and how they start an example on several ranks and read its epochs."""

from __future__ import annotations

import json
import os
import re
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
"""Modules that `hvdgrab-bench overhead` can start: the examples, and a model of ten million parameters."""
SIMULATED = tuple(order for order in ORDERS if order not in SINGLE_RANK_ORDERS)
"""Orders that `hvdgrab-bench simulate` can compare."""
_SHOWN = 3000  # characters of a failed run's output
_PATIENCE = 15.0  # seconds for mpirun to end its ranks


class BenchError(HvdGrabError, RuntimeError):
    """A benchmark's run failed, or did not measure what it should."""


def failure(what: str, output: str) -> BenchError:
    """The error of a failed run; its message ends with the last lines of the output."""
    return BenchError(f"{what}; its last lines:\n{output[-_SHOWN:]}")


@dataclass(frozen=True)
class Site:
    """How this machine starts ranks."""

    ranks: int
    oversubscribe: bool = False
    """Allow more ranks than cores, which Open MPI refuses by default."""
    allow_root: bool = False
    """Allow mpirun to run as root, which Open MPI refuses by default."""
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
    """Find the ``mpirun`` beside this interpreter, or else on PATH.

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
    """An order and, after a colon, the compression of its pair differences: ``cd-grab:topk``."""

    order: str
    compression: str | None = None

    @classmethod
    def parse(cls, text: str) -> Variant:
        """Parse the text of a command line; raise `ValueError` if it is no variant."""
        order, _, compression = text.partition(":")
        if order not in ORDERS or (":" in text and compression not in get_args(CompressionKind)):
            raise ValueError(text)
        return cls(order, compression or None)

    def __str__(self) -> str:
        return self.order if self.compression is None else f"{self.order}:{self.compression}"

    @property
    def grab(self) -> dict[str, object]:
        """The settings beside the order, as in a job's ``grab:`` section."""
        return {} if self.compression is None else {"compression": self.compression}


@dataclass(frozen=True)
class Case:
    """A case of the order engine's benchmark.

    ``MxD``: m vectors of d floats in memory; ``WxPxD``: an epoch of W ranks with P pairs of d floats, window by window.
    """

    ranks: int | None
    pairs: int
    d: int

    @classmethod
    def parse(cls, text: str) -> Case:
        """Parse a name such as 4096x1024 or 1024x500x4096.

        Raises:
            ValueError: `text` is no case.
        """
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){1,2}", text):
            raise ValueError(f"{text!r} is no case: give MxD (vectors x floats) or WxPxD (ranks x pairs x floats)")
        numbers = [int(part) for part in text.split("x")]
        return cls(None, *numbers) if len(numbers) == 2 else cls(*numbers)

    @property
    def m(self) -> int:
        """Number of vectors."""
        return self.pairs * (self.ranks or 1)

    def __str__(self) -> str:
        return "x".join(str(number) for number in (self.ranks, self.pairs, self.d) if number is not None)


def run(
    site: Site, example: str, arguments: Sequence[str], grab: Mapping[str, object] | None = None
) -> tuple[list[EpochRecord], float]:
    """Run an example to its end in its own job directory; return its epochs and its wall-clock seconds.

    Args:
        site: how ranks are started.
        example: one of `PROGRAMS`.
        arguments: of the example.
        grab: settings of the ordering, as in a job's YAML.

    Raises:
        BenchError: the run failed or took too long; the message ends with the last lines of its output.
    """
    with tempfile.TemporaryDirectory(prefix="hvdgrab-bench-") as folder:
        started = time.monotonic()
        output, code = _wait(site.command(["-m", PROGRAMS[example], *arguments]), _environment(folder, grab or {}), site.timeout)
        seconds = time.monotonic() - started
        if code != 0:
            ended = f"did not end within {site.timeout:g} s" if code is None else f"ended with code {code}"
            raise failure(f"{example} {' '.join(arguments)} {ended}", output)
        records = metrics.latest(metrics.read(Path(folder) / metrics.FILE_NAME).records)
    if not records:
        raise BenchError(f"{example} {' '.join(arguments)} wrote no {metrics.FILE_NAME}")
    return records, seconds


def _environment(folder: str, grab: Mapping[str, object]) -> dict[str, str]:
    """This process's environment, with one thread a rank, without the variables of another job."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HVDGRAB_JOB", "HVDGRAB_GRAB"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept.get('PATH', os.defpath)}"
    settings = {ENVIRONMENT_VARIABLE: json.dumps(grab)} if grab else {}
    return {"OMP_NUM_THREADS": "1", **kept, **settings, "PATH": path, "HVDGRAB_JOB_DIR": folder}


def _wait(command: list[str], environment: dict[str, str], timeout: float) -> tuple[str, int | None]:
    """Wait for output and exit code, which is None after a timeout.  A signal to mpirun ends its ranks too."""
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
