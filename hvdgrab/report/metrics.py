"""The job's record of its epochs: ``metrics.jsonl``, one JSON object a line, an epoch a line, written by rank 0.

The file is what the launcher shows while a job runs and what `hvdgrab.report` draws afterwards.  Unknown and non-finite
numbers are null, so that every JSON reader accepts every line.  A crash may tear the last line; the next `append` starts
a fresh one and `read` steps over the torn one.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hvdgrab.errors import UsageError

FILE_NAME = "metrics.jsonl"
_log = logging.getLogger("hvdgrab.report.metrics")
_warned: set[Path] = set()


@dataclass(frozen=True)
class EpochRecord:
    """What is known of one epoch after its last unit; None if unknown."""

    epoch: int
    """The epoch's number, from 0."""
    order: str
    """The rule that really ordered this epoch (``cd-grab``, ``rr``, …)."""
    train_loss: float | None = None
    """Mean over the epoch's ``optimizer.log(loss=…)`` calls and over ranks."""
    herding_l2: float | None = None
    """Parallel herding bound of this epoch's orders in the Euclidean norm (an estimate in sketch mode)."""
    herding_linf: float | None = None
    """The same in the maximum norm; exact mode only."""
    herding_l2_vs_random: float | None = None
    """``herding_l2`` over the mean bound of random orders of the same gradients: 1.0 is random reshuffling."""
    bytes_sent: int | None = None
    """Bytes of pair differences that all ranks sent to order the next epoch."""
    bytes_dense: int | None = None
    """Bytes that dense fp32 differences of the same pairs would have taken."""
    pairs: int | None = None
    """Pairs balanced, over all ranks."""
    pairs_dropped: int | None = None
    """Pairs among them that were not finite."""
    step_ms: float | None = None
    """Mean wall-clock milliseconds from one unit to the next on rank 0."""
    ordering_ms: float | None = None
    """Mean milliseconds a unit that the ordering took of rank 0's training thread."""
    order_hash: str | None = None
    """Hash of all ranks' orders of this epoch."""
    epochs: int | None = None
    """Epochs that the run will have, if the script tells."""
    ranks: int | None = None
    """Number of ranks W."""
    units: int | None = None
    """Units n of every rank."""
    seconds: float | None = None
    """Wall-clock seconds of the epoch."""
    time: float | None = None
    """Unix time at the epoch's end."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Means of all further scalars given to ``optimizer.log``, stored in the file under their own names."""

    def to_json(self) -> str:
        """One line of JSON without its newline; NaN and infinities become null."""
        plain = {item.name: getattr(self, item.name) for item in dataclasses.fields(self) if item.name != "extra"}
        return json.dumps({name: _finite(value) for name, value in (plain | dict(self.extra)).items()}, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> EpochRecord:
        """The record of one line; ValueError if it is not one.  Numbers under unknown names become ``extra``."""
        values = json.loads(line)
        if not isinstance(values, dict) or not isinstance(values.get("epoch"), int) or not isinstance(values.get("order"), str):
            raise ValueError("not an epoch record: it needs an integer 'epoch' and a string 'order'")
        known = {name: value for name, value in values.items() if name in FIELDS}
        wrong = sorted(name for name, value in known.items() if name not in _TEXT and not _is_number(value))
        if wrong:
            raise ValueError(f"not a number: {', '.join(wrong)}")
        further = {name: value for name, value in values.items() if name not in FIELDS and _is_number(value)}
        return cls(**known, extra={name: float(value) for name, value in further.items() if value is not None})


FIELDS = frozenset(item.name for item in dataclasses.fields(EpochRecord)) - {"extra"}
"""Names that a further scalar may not take."""
_TEXT = frozenset({"order", "order_hash"})


class Metrics(NamedTuple):
    """What `read` found: the records in file order, and a sentence for every line that is none."""

    records: list[EpochRecord]
    problems: list[str]


def append(path: Path, record: EpochRecord) -> bool:
    """Add one line to ``path`` with a single write; returns whether it is there.

    If the line cannot be written (full disk, read-only or deleted directory), one warning is logged for the file and the run goes
    on: a record of a training is worth less than the training.
    """
    line = (record.to_json() + "\n").encode()
    try:
        _write(path, line)
    except OSError as error:
        if path not in _warned:
            _warned.add(path)
            _log.warning("cannot write the epoch's metrics to %s: %s; the training goes on without them", path, error)
        return False
    _warned.discard(path)
    return True


def _write(path: Path, line: bytes) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            line = b"\n" + line  # a crash tore the last line: it must not swallow this one
        if os.write(descriptor, line) != len(line):
            raise OSError("only a part of the line was written (is the disk full?)")
    finally:
        os.close(descriptor)


def read(path: Path) -> Metrics:
    """All epochs of ``path``; an absent file has none.

    A last line without its newline is still being written, or was torn by a crash, and is passed over in silence unless it is
    complete.  Any other line that is no epoch record is named by its number in ``problems``.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return Metrics([], [])
    found = Metrics([], [])
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.records.append(EpochRecord.from_json(line.decode()))
        except ValueError as error:  # json's and unicode's own errors are ValueErrors
            if number < len(lines):
                found.problems.append(f"{path.name}, line {number}: {error}")
    return found


def latest(records: Iterable[EpochRecord]) -> list[EpochRecord]:
    """One record an epoch, in epoch order; if a restarted job ran an epoch twice, the later line counts."""
    return [record for _, record in sorted({record.epoch: record for record in records}.items())]


class ScalarMean:
    """Means of named scalars over the calls of one epoch.

    Tensors are detached and summed on their device, so that only `totals` waits for a GPU.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, **scalars: Any) -> None:
        """Count one value for each name: a number, or a tensor or array of one element.

        Raises:
            UsageError: the name is a column of ``metrics.jsonl`` already, or the value is not one number.
        """
        for name, value in scalars.items():
            if name in FIELDS or name == "extra":
                raise UsageError(f"log({name}=…): '{name}' is a column of {FILE_NAME} already; choose another name")
            self._sums[name] = self._sums.get(name, 0.0) + _scalar(name, value)
            self._counts[name] = self._counts.get(name, 0) + 1

    def totals(self) -> dict[str, tuple[float, int]]:
        """Sum and count of every name: what ranks exchange."""
        return {name: (float(total), self._counts[name]) for name, total in self._sums.items()}

    def clear(self) -> None:
        """Start the next epoch."""
        self._sums.clear()
        self._counts.clear()

    @staticmethod
    def merge(ranks: Iterable[Mapping[str, tuple[float, int]]]) -> dict[str, float]:
        """Mean of every name over all calls of all ranks; a rank without a name does not count for it."""
        sums: dict[str, float] = {}
        counts: dict[str, int] = {}
        for totals in ranks:
            for name, (total, count) in totals.items():
                sums[name] = sums.get(name, 0.0) + total
                counts[name] = counts.get(name, 0) + count
        return {name: sums[name] / counts[name] for name in sums if counts[name]}


def _scalar(name: str, value: Any) -> Any:
    """``value`` in double precision: a float, or a detached tensor of one element on its own device."""
    if hasattr(value, "detach"):
        if value.numel() != 1:
            raise UsageError(f"log({name}=…) takes one number, not a tensor of shape {tuple(value.shape)}")
        return value.detach().double().reshape(())
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"log({name}=…) takes one number, not {value!r}") from None


def _finite(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value  # numpy's and torch's numbers
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
