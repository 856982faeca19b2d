"""What every compressor has to hold, run over all that are registered.

`cases()` lists (kind, options); a new compressor is in it as soon as it is registered, and can name more options in OPTIONS.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hvdgrab.compression import Compressor, Payload, build_compressor, compressor_kinds

OPTIONS: dict[str, list[dict[str, Any]]] = {"none": [{}]}
LENGTHS = (0, 1, 2, 63, 64, 65, 1000, 4097)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def cases() -> list[tuple[str, dict[str, Any]]]:
    return [(kind, options) for kind in compressor_kinds() for options in OPTIONS.get(kind, [{}])]


def vector(d: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check_size_is_known_before(make: Compressor) -> None:
    for d in LENGTHS:
        for dtype in DTYPES:
            assert make.compress(vector(d, dtype)).nbytes == make.wire_bytes(d)


def check_payload_is_plain_bytes(make: Compressor) -> None:
    payload = make.compress(vector(1000))
    assert payload.data.dtype == np.uint8
    assert payload.data.flags.c_contiguous
    assert payload.nbytes == payload.data.nbytes == len(payload.data.tobytes())


def check_expanded_vector(make: Compressor) -> None:
    for d in LENGTHS:
        for dtype in DTYPES:
            expanded = make.expand(make.compress(vector(d, dtype)))
            assert expanded.shape == (make.width(d),)
            assert expanded.dtype == torch.float32
            assert expanded.device.type == "cpu"


def check_payload_travels(make: Compressor) -> None:
    """What arrives is bytes, not objects: a copy of them, read-only and not aligned, expands to the same vector."""
    payload = make.compress(vector(1000))
    moved = np.frombuffer(b"x" + payload.data.tobytes(), dtype=np.uint8)[1:]
    assert torch.equal(make.expand(Payload(moved)), make.expand(payload))


def check_nothing_is_kept_by_reference(make: Compressor) -> None:
    difference = vector(1000)
    payload = make.compress(difference)
    expected = make.expand(payload)
    kept = expected.clone()
    difference.zero_()
    assert torch.equal(make.expand(payload), expected)
    payload.data[:] = 0
    assert torch.equal(expected, kept)


def check_input_is_not_changed(make: Compressor) -> None:
    difference = vector(1000)
    before = difference.clone()
    make.compress(difference)
    assert torch.equal(difference, before)


def check_given_memory_is_used(make: Compressor) -> None:
    d = 1000
    space = np.full(make.wire_bytes(d) + 1, 7, dtype=np.uint8)[1:]
    payload = make.compress(vector(d), out=space)
    assert np.shares_memory(payload.data, space)
    assert np.array_equal(space, make.compress(vector(d)).data)
    room = torch.full((2, make.width(d)), 7.0)
    result = make.expand(payload, out=room[1])
    assert result.data_ptr() == room[1].data_ptr()
    assert torch.equal(room[1], make.expand(payload))
    assert bool((room[0] == 7).all())


def check_strides_do_not_matter(make: Compressor) -> None:
    spread = vector(2000)[::2].requires_grad_()
    assert np.array_equal(make.compress(spread).data, make.compress(spread.detach().clone()).data)


def check_same_input_same_bytes(make: Compressor) -> None:
    assert np.array_equal(make.compress(vector(4097)).data, make.compress(vector(4097)).data)


def check_info_keeps_its_promises(make: Compressor) -> None:
    first, second = vector(1000, seed=1), vector(1000, seed=2)
    if make.info.lossless:
        assert torch.equal(make.expand(make.compress(first)), first)
    if make.info.linear:
        apart = make.expand(make.compress(first)) - make.expand(make.compress(second))
        assert torch.allclose(make.expand(make.compress(first - second)), apart, atol=1e-4)


def check_non_finite_values_survive(make: Compressor) -> None:
    """PairBalance drops a pair because it sees a non-finite value: no compressor may turn one into a number."""
    for bad in (float("nan"), float("inf"), -float("inf")):
        difference = vector(1000)
        difference[137] = bad
        assert not bool(torch.isfinite(make.expand(make.compress(difference))).all())


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]


def build(case: tuple[str, dict[str, Any]]) -> Compressor:
    return build_compressor(case[0], **case[1])
