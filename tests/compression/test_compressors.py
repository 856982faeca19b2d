from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdgrab.compression import Payload, build_compressor
from hvdgrab.compression.payload import HEADER_BYTES
from hvdgrab.errors import PayloadError, UsageError
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


class Trusting(Zeroing):
    """Believes whatever arrives."""

    def expand(self, payload: Payload, out: torch.Tensor | None = None) -> torch.Tensor:
        return torch.from_numpy(payload.data[HEADER_BYTES:].copy()).view(torch.float32)

    def expand_many(self, payloads: np.ndarray, out: torch.Tensor) -> None:
        out.copy_(torch.stack([self.expand(Payload(row)) for row in payloads]))


class Coarse(Zeroing):
    """Sends half precision as it is: 65,504 overflows, and values below 6e-8 vanish."""

    def compress(self, difference: torch.Tensor, out: np.ndarray | None = None) -> Payload:
        return self.inner.compress(difference.half().float(), out)


@pytest.mark.parametrize(
    ("mutant", "check"),
    [
        (Aliasing, harness.check_nothing_is_kept_by_reference),
        (Aliasing, harness.check_given_memory_is_used),
        (Zeroing, harness.check_non_finite_values_survive),
        (Coarse, harness.check_values_stay_within_the_tolerance),
    ],
)
def test_the_harness_catches_mistakes(mutant, check):
    with pytest.raises(AssertionError):
        check(mutant())


@pytest.mark.parametrize(
    "check",
    [
        harness.check_any_flipped_bit_is_noticed,
        harness.check_foreign_payloads_are_refused_by_name,
        harness.check_a_damaged_row_is_named_and_nothing_written,
    ],
)
def test_the_harness_catches_what_is_not_refused(check):
    with pytest.raises(pytest.fail.Exception):
        check(Trusting())


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(harness.cases()), st.integers(0, 2000), st.floats(0, 1, exclude_max=True))
def test_a_flipped_bit_anywhere_is_noticed(case, d, where):
    make = harness.build(case)
    sound = make.compress(harness.vector(d)).data
    with pytest.raises(PayloadError):
        make.expand(Payload(harness.flipped(sound, int(where * 8 * len(sound)))))


@pytest.mark.parametrize(
    ("case", "body"),
    [
        (("none", {}), 4 * 936_191),
        (("fp16", {}), 4 + 2 * 936_191),
        (("bf16", {}), 2 * 936_191),
        (("int8", {}), 936_191 + 4 * 3657),
        (("topk", {}), 9362 * (4 + 2) + 4),
        (("topk", {"k": 10, "dtype": "fp32"}), 10 * (4 + 4)),
        (("sketch", {}), 4096 + 4 * 16),
        (("sketch", {"dtype": "sign"}), 512 + 4),
        (("sketch", {"dtype": "fp16", "width": 1000}), 2000 + 4),
    ],
    ids=str,
)
def test_sizes_on_the_wire(case, body):
    assert harness.build(case).wire_bytes(936_191) == HEADER_BYTES + body


def test_dense_sends_four_bytes_a_value():
    dense = build_compressor("none")
    assert dense.compress(torch.tensor([1.0, -2.0])).data[HEADER_BYTES:].tobytes() == np.array([1, -2], dtype="<f4").tobytes()


def test_projected_vectors_have_the_width_of_the_sketch():
    with pytest.raises(UsageError, match=r"floating-point \(64,\), not \(65,\)"):
        build_compressor("sketch", width=64).encode(torch.zeros(65))
    with pytest.raises(UsageError, match=r"floating-point \(d,\), not \(2, 3\)"):
        build_compressor("none").encode(np.zeros((2, 3), dtype=np.float32))


def test_settings_of_the_ranks_are_compared_by_the_payload():
    with pytest.raises(PayloadError, match=r"'sketch' with 'fp16' values, where 'sketch' with 'int8' values in blocks of 256"):
        build_compressor("sketch").expand(build_compressor("sketch", dtype="fp16").compress(torch.zeros(3)))
    with pytest.raises(PayloadError, match=r"in blocks of 128, where 'int8' with 'int8' values in blocks of 256"):
        build_compressor("int8").expand(build_compressor("int8", block=128).compress(torch.zeros(3)))


@pytest.mark.soak
@pytest.mark.parametrize("case", harness.cases(), ids=str)
def test_every_flipped_bit_is_noticed(case):
    make = harness.build(case)
    sound = make.compress(harness.vector(600)).data
    for bit in range(8 * len(sound)):
        with pytest.raises(PayloadError):
            make.expand(Payload(harness.flipped(sound, bit)))
