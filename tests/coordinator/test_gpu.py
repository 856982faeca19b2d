from __future__ import annotations

import json

import pytest
import torch

from tests.real import mpirun


@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: this machine has no CUDA device")
def test_two_ranks_on_one_gpu_balance_there_and_never_wait_for_the_training():
    """CI has no GPU either: what it sees is the same code on the host (test_coordinators)."""
    job = mpirun(2, ["-m", "tests.coordinator.gpu_program"], timeout=300)
    assert job.returncode == 0, job.stderr
    results = json.loads(job.stdout)
    for name, ranks in results.items():
        for rank, found in enumerate(ranks):
            assert found["orders"], (name, rank)
            assert found["waited"] == 0, (name, rank)
            balances = name != "designated" or rank == 0
            assert found["on device"] == ("cuda" if balances else None), (name, rank)
            assert found["backend"] == (("torch" if name == "sharded" else "triton") if balances else None), (name, rank)
