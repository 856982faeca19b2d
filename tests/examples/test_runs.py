"""The examples end to end: one process without Horovod, and real ranks under mpirun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdgrab.bench import runs
from hvdgrab.bench.runs import Site
from hvdgrab.report import metrics
from tests.examples.real_data import NEEDED, real_data
from tests.real import ROOT, find_mpirun, need_horovod

SMALL = {
    "digits": ["--limit", "60", "--batch-size", "4"],
    "m4_mlp": ["--limit", "80", "--batch-size", "8"],
    "lstm_wikitext2": ["--limit", "12", "--batch-size", "2", "--lr", "0.1", "--clip", "0.25"],
}
SCALARS = {"digits": "test_accuracy", "m4_mlp": "test_smape", "lstm_wikitext2": "valid_perplexity"}
LAUNCHED = ("OMPI_", "PMI", "SLURM_", "HOROVOD_")


def every_example(*ordinarily: str) -> pytest.MarkDecorator:
    """All examples; those that are not named run in `make soak`."""
    soak = pytest.mark.soak
    return pytest.mark.parametrize("name", [pytest.param(one, marks=() if one in ordinarily else soak) for one in sorted(SMALL)])


@pytest.fixture(autouse=True)
def _data(request: pytest.FixtureRequest) -> None:
    """An example that needs data has them."""
    name = request.node.callspec.params["name"] if hasattr(request.node, "callspec") else None
    if name in NEEDED:
        real_data(NEEDED[name])


def _single(name: str, folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One process without a launcher."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith((*LAUNCHED, "HVDGRAB_GRAB"))}
    env = {**kept, "OMP_NUM_THREADS": "1", "HVDGRAB_JOB_DIR": str(folder), "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-m", f"hvdgrab.examples.{name}", "--epochs", "2", *SMALL[name], *arguments]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300)


def _records(folder: Path) -> list[metrics.EpochRecord]:
    found = metrics.read(folder / "metrics.jsonl")
    assert found.problems == []
    return found.records


@every_example("m4_mlp")
def test_in_a_single_process(name: str, tmp_path: Path) -> None:
    done = _single(name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["1/2", "2/2"]
    records = _records(tmp_path)
    assert [(record.epoch, record.order, record.ranks, record.epochs) for record in records] == [
        (epoch, "cd-grab", 1, 2) for epoch in range(2)
    ]
    assert all(record.train_loss is not None and SCALARS[name] in record.extra for record in records)


def test_the_yaml_decides_the_order_and_contradictions_are_errors(tmp_path: Path) -> None:
    grab = '{"order": "rr", "seed": 3}'
    done = _single("digits", tmp_path, HVDGRAB_GRAB=grab)
    assert done.returncode == 0, done.stderr
    assert {record.order for record in _records(tmp_path)} == {"rr"}
    refused = _single("digits", tmp_path, "--order", "cd-grab", HVDGRAB_GRAB=grab)
    assert refused.returncode != 0
    assert "'order' is 'rr' in the job's YAML" in refused.stderr
    assert "Traceback" not in refused.stderr, "a contradiction is the user's mistake, not the program's"


def _mpirun(name: str, *arguments: str) -> list[metrics.EpochRecord]:
    """Two real ranks."""
    find_mpirun()
    need_horovod()
    site = Site(2, oversubscribe=True, allow_root=os.geteuid() == 0, timeout=300)
    records, _ = runs.run(site, name, ["--epochs", "2", *SMALL[name], *arguments])
    return records


@every_example("lstm_wikitext2")
def test_on_two_ranks(name: str) -> None:
    records = _mpirun(name, "--full-loss", "--seed", "1", "--order", "cd-grab")
    assert [(record.order, record.ranks) for record in records] == [("cd-grab", 2)] * 2
    assert all(record.pairs and record.pairs_dropped == 0 for record in records)
    assert all("full_loss" in record.extra for record in records)


@pytest.mark.soak
def test_on_two_ranks_with_accumulation() -> None:
    records = _mpirun("digits", "--backward-passes", "3")
    assert len(records) == 2
    assert all(record.train_loss is not None for record in records)


@pytest.mark.soak
def test_on_two_ranks_as_plain_horovod() -> None:
    records = _mpirun("digits", "--no-grab")
    assert [(record.order, record.ranks) for record in records] == [("plain-horovod", 2)] * 2
    assert all(record.train_loss is not None and record.extra["train_seconds"] > 0 for record in records)
