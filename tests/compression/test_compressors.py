from __future__ import annotations

import numpy as np
import pytest
import torch

from hvdgrab.compression import Payload, build_compressor
from hvdgrab.errors import UsageError
from tests.compression import harness


@pytest.mark.parametrize("check", harness.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", harness.cases(), ids=str)
def test_every_registered_compressor(case, check):
    check(harness.build(case))


class Aliasing:
    """Keeps the caller's memory instead of its content."""

    def __init__(self) -> None:
        self.inner = build_compressor("none")

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def compress(self, difference: torch.Tensor, out: np.ndarray | None = None) -> Payload:
        return Payload(difference.numpy().view(np.uint8))

    def expand(self, payload: Payload, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.from_numpy(payload.data.view(np.float32))


class Zeroing(Aliasing):
    """Makes numbers of values that are none."""

    def compress(self, difference: torch.Tensor, out: np.ndarray | None = None) -> Payload:
        return self.inner.compress(difference.nan_to_num(0, 0, 0), out)

    def expand(self, payload: Payload, out: torch.Tensor | None = None) -> torch.Tensor:
        return self.inner.expand(payload, out)


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (Aliasing, harness.check_nothing_is_kept_by_reference),
        (Aliasing, harness.check_given_memory_is_used),
        (Zeroing, harness.check_non_finite_values_survive),
    ],
)
def test_the_harness_catches_mistakes(mutant, check):
    with pytest.raises(AssertionError):
        check(mutant())


def test_dense_sends_four_bytes_a_value():
    dense = build_compressor("none")
    assert (dense.wire_bytes(936_191), dense.width(936_191)) == (3_744_764, 936_191)
    assert dense.compress(torch.tensor([1.0, -2.0])).data.tobytes() == np.array([1, -2], dtype="<f4").tobytes()


def test_dense_refuses_what_does_not_fit():
    dense = build_compressor("none")
    for wrong in (torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(UsageError, match="floating-point"):
            dense.compress(wrong)
    for out in (np.zeros(7, dtype=np.uint8), np.zeros(8, dtype=np.int8), np.zeros(16, dtype=np.uint8)[::2]):
        with pytest.raises(UsageError, match="8 contiguous bytes"):
            dense.compress(torch.zeros(2), out=out)
    with pytest.raises(UsageError, match="7 bytes"):
        dense.expand(Payload(np.zeros(7, dtype=np.uint8)))
    for room in (torch.zeros(3), torch.zeros(2, dtype=torch.float64), torch.zeros(2, device="meta")):
        with pytest.raises(UsageError, match="2 float32 values"):
            dense.expand(Payload(np.zeros(8, dtype=np.uint8)), out=room)
