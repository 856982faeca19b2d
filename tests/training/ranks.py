"""Many checks in one job of real ranks.

Importing torch and Horovod costs seconds a rank, so a job is started once for each number of ranks and runs every check that is
registered for it, one after the other::

    mpirun -np 4 python -m tests.training.ranks 4 DIRECTORY

A check is a function ``check(ranks)`` that all ranks call together.  One that fails on a rank fails for all of them and the job
goes on; one that hangs ends the job, and whoever started it starts another for the rest (see conftest.py).  World 0 is a plain
process without Horovod or MPI.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

MODULES = ("capture", "compression", "coordinators", "orders", "weights", "contract", "state", "loops", "records")
"""``tests.training.checks_NAME``."""
CHECK_SECONDS = 200.0


@dataclass(frozen=True)
class Check:
    name: str
    function: Callable[[Any], None]
    worlds: tuple[int, ...]
    soak: tuple[int, ...]
    """Those among the worlds that only `make soak` starts it in."""


_registry: dict[str, Check] = {}


def check(
    *worlds: int, cases: dict[str, Any] | None = None, soak: tuple[int, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a check for these numbers of ranks; with ``cases``, once for each of them: ``check(ranks, case)``.

    ``soak`` are further numbers of ranks, for `make soak`.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        room = function.__module__.rsplit("checks_", 1)[-1]
        for case, value in (cases or {"": None}).items():
            name = f"{room}.{function.__name__}" + (f"[{case}]" if case else "")
            assert name not in _registry, f"two checks are named {name}"
            work = function if cases is None else (lambda ranks, value=value: function(ranks, value))
            _registry[name] = Check(name, work, (*worlds, *soak), soak)
        return function

    return register


def all_checks() -> list[Check]:
    for module in MODULES:
        importlib.import_module(f"tests.training.checks_{module}")
    return list(_registry.values())


class Ranks:
    """What a check is given: this rank's place, and what must be put away afterwards."""

    def __init__(self, world: int, directory: Path) -> None:
        self.hvd: Any = None
        self.comm: Any = None
        self.part: Any = None
        """A Horovod process set of rank 0 alone, where there are several ranks."""
        self.rank, self.size, self.top = 0, 1, directory
        self.prefix = ""
        self.stack = contextlib.ExitStack()
        self.optimizers: list[Any] = []
        if world:
            import horovod.torch as hvd

            if not hvd.is_initialized():
                self.part = hvd.ProcessSet([0]) if world > 1 else None
                hvd.init(process_sets=[self.part] if self.part else None)
            from mpi4py import MPI

            from hvdgrab.comm.split import split_off

            split = split_off()  # a server takes part in nothing that the ranks do among themselves
            self.hvd, self.comm = hvd, (MPI.COMM_WORLD if split is None else split.training).Dup()
            self.rank, self.size = hvd.rank(), hvd.size()
            assert self.size == world, f"Horovod counts {self.size} ranks, {world} were started"

    @property
    def directory(self) -> Path:
        """The check's own, the same on all ranks."""
        path = self.top / self.prefix.replace("[", "-").rstrip("]")
        path.mkdir(parents=True, exist_ok=True)
        return path

    def everyone(self, value: Any) -> list[Any]:
        """All ranks' values, in rank order, on every rank."""
        return [value] if self.comm is None else self.comm.allgather(value)

    def same(self, value: Any) -> None:
        """The value is equal on all ranks."""
        values = self.everyone(value)
        assert all(other == values[0] for other in values), f"differs between the ranks: {values}"

    @contextlib.contextmanager
    def refused(self, kind: type[BaseException], *words: str) -> Iterator[None]:
        """The block raises ``kind``, and its message holds all the words."""
        try:
            yield
        except kind as error:
            missing = [word for word in words if word not in str(error)]
            assert not missing, f"the message does not say {missing}: {error}"
            return
        raise AssertionError(f"nothing was refused; expected {kind.__name__}")

    @contextlib.contextmanager
    def heard(self) -> Iterator[list[str]]:
        """What this rank's Python writes to standard error inside the block, which still goes there."""
        said: list[str] = []
        write = sys.stderr.write
        with mock.patch.object(sys.stderr, "write", lambda text: said.append(text) or write(text)):
            yield said

    def environment(self, **values: str) -> None:
        """Set environment variables until the check is over."""
        self.stack.enter_context(mock.patch.dict(os.environ, values))

    def begin(self, name: str) -> None:
        self.prefix, self.stack, self.optimizers = name, contextlib.ExitStack(), []

    def end(self, failed: bool) -> None:
        """Close what the check left open; without waiting for others if it failed."""
        for optimizer in self.optimizers:
            optimizer._capture.close()
            optimizer._session.close(finish=not failed, timeout=5.0 if failed else 30.0)
        self.optimizers.clear()
        self.stack.close()

    def agree(self, failed: bool) -> bool:
        return any(self.everyone(failed))


def run_check(ranks: Ranks, one: Check, report: Callable[..., None]) -> None:
    """Run one check on this rank and report how it ended."""
    report(one.name, "begun", "")
    faulthandler.dump_traceback_later(CHECK_SECONDS, exit=True)
    began, text = time.perf_counter(), ""
    ranks.begin(one.name)
    try:
        one.function(ranks)
    except Exception:
        text = traceback.format_exc()
        report(one.name, "failed", text)  # at once: the others may hang now
    try:
        ranks.end(bool(text))
    except Exception:
        text += traceback.format_exc()
    gc.collect()  # persistent workers go now, not in a worker that a later check forks
    failed = ranks.agree(bool(text))
    faulthandler.cancel_dump_traceback_later()
    report(one.name, "failed" if failed else "passed", text, time.perf_counter() - began)


def main(world: int, directory: Path) -> None:
    ranks = Ranks(world, directory)
    done = set(json.loads((directory / "done.json").read_text()))
    only = directory / "only.json"
    wanted = json.loads(only.read_text()) if only.exists() else None
    with (directory / f"rank-{ranks.rank}.jsonl").open("a") as file:

        def report(name: str, state: str, text: str, seconds: float = 0.0) -> None:
            file.write(json.dumps({"check": name, "state": state, "text": text, "seconds": seconds}) + "\n")
            file.flush()

        for one in all_checks():
            if world in one.worlds and one.name not in done and (wanted is None or one.name in wanted):
                run_check(ranks, one, report)
        report("", "finished", "")


if __name__ == "__main__":
    faulthandler.enable()
    from tests.training import ranks as harness  # the module that the checks register with is not __main__

    harness.main(int(sys.argv[1]), Path(sys.argv[2]))
