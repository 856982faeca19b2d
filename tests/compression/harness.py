"""What every compressor has to hold, run over all that are registered.

`cases()` lists (kind, options); a new compressor is in it as soon as it is registered, and can name more options in OPTIONS.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from hvdgrab.compression import Compressor, Payload, build_compressor, compressor_kinds
from hvdgrab.compression.payload import HEADER_BYTES
from hvdgrab.errors import PayloadError, UsageError

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "int8": [{}, {"block": 1}, {"block": 100}],
    "topk": [{}, {"ratio": 0.2, "dtype": "fp32"}, {"k": 3}, {"ratio": 1.0}],
    "sketch": [{}, {"width": 300, "seed": 5}, {"width": 64, "dtype": "fp32"}, {"width": 9, "dtype": "fp16"}, {"dtype": "sign"}],
}
LENGTHS = (0, 1, 2, 63, 64, 65, 1000, 4097)
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
LARGEST = float(torch.finfo(torch.float32).max)


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


def extremes(d: int = 1000) -> dict[str, torch.Tensor]:
    """Finite vectors at the ends of what float32 holds."""
    normal, zeros = vector(d), torch.zeros(d)
    spike = zeros.clone()
    spike[d // 3] = -LARGEST
    return {
        "normal": normal,
        "zero": zeros,
        "minus zero": -zeros,
        "one is the largest there is": spike,
        "among smaller": normal + spike,
        "tiny": normal * 1e-30,
        "denormal": normal * 1e-42,
        "smallest": normal.sign() * 2.0**-149,
        "beyond a half": normal * 1e6,
        "huge": normal * 1e35,
        "heavy tail": normal**9,
        "all scales": normal * 10.0 ** torch.linspace(-44, 35, d),
        "constant": torch.full((d,), 0.1),
        "few": zeros.index_fill(0, torch.tensor([5, d - 1]), 3.0),
    }


def check_values_stay_within_the_tolerance(make: Compressor) -> None:
    for name, difference in extremes().items():
        expanded, wanted = make.expand(make.compress(difference)), project(make, difference)
        assert bool(torch.isfinite(expanded).all()), name
        wrong = (expanded.double() - wanted.double()).abs().numpy() > make.tolerance(difference)
        assert not wrong.any(), (name, int(wrong.sum()))


def check_zero_expands_to_zero(make: Compressor) -> None:
    for d in LENGTHS:
        assert not bool(make.expand(make.compress(torch.zeros(d))).any())


def check_halves_that_cancel_are_subtracted_in_full(make: Compressor) -> None:
    """Two gradients in half precision that agree in almost all bits: their difference is compressed, not they."""
    first = (1 + torch.arange(1000) % 7 * 2.0**-10).half()
    second = (1 + torch.arange(1000) % 5 * 2.0**-10).half()
    difference = first.float() - second.float()
    apart = project(make, first) - project(make, second)
    error = (make.expand(make.encode(apart)) - project(make, difference)).abs().numpy()
    assert (error <= make.tolerance(difference) + 1e-4 * 2.0**-10).all()


def check_compress_is_encode_of_the_projection(make: Compressor) -> None:
    difference = vector(1000)
    projected = project(make, difference)
    assert projected.shape == (make.width(1000),)
    assert np.array_equal(make.encode(projected).data, make.compress(difference).data)
    assert np.array_equal(make.encode(projected.numpy()).data, make.compress(difference).data)


def check_whole_numbers_give_the_same_bytes_on_any_number_of_threads(make: Compressor) -> None:
    difference = torch.randint(-9, 10, (300_000,), generator=torch.Generator().manual_seed(0)).float()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(make.compress(difference).data)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(found[0], found[1])


def check_many_at_once_are_as_one_after_the_other(make: Compressor) -> None:
    for d in (0, 1, 1000):
        payloads = np.stack([make.compress(vector(d, seed=seed)).data for seed in range(3)])
        room = torch.full((3, 2 * make.width(d)), 7.0)
        make.expand_many(payloads, room[:, ::2])
        expected = torch.stack([make.expand(Payload(row)) for row in payloads])
        assert torch.equal(room[:, ::2], expected)
        assert bool((room[:, 1::2] == 7).all())
        odd = np.zeros((1, payloads.shape[1] + 1), dtype=np.uint8)  # a single row of a table whose rows begin anywhere
        odd[0, 1:] = payloads[0]
        alone = torch.empty(1, make.width(d))
        make.expand_many(odd[:, 1:], alone)
        assert torch.equal(alone, expected[:1])
    make.expand_many(payloads[:0], room[:0, ::2])


def check_strided_memory_is_written(make: Compressor) -> None:
    room = torch.full((make.width(1000), 2), 7.0)
    make.expand(make.compress(vector(1000)), out=room[:, 1])
    assert torch.equal(room[:, 1], make.expand(make.compress(vector(1000))))
    assert bool((room[:, 0] == 7).all())


def check_any_flipped_bit_is_noticed(make: Compressor) -> None:
    sound = make.compress(vector(9)).data
    places = range(8 * len(sound)) if len(sound) < 200 else random.Random(0).sample(range(8 * len(sound)), 200)
    for place in places:
        with pytest.raises(PayloadError):
            make.expand(Payload(flipped(sound, place)))


def check_truncated_payloads_are_refused(make: Compressor) -> None:
    sound = make.compress(vector(9)).data
    for kept in {0, 1, HEADER_BYTES - 1, HEADER_BYTES, len(sound) - 1} - {len(sound)}:
        with pytest.raises(PayloadError, match="truncated"):
            make.expand(Payload(sound[:kept]), out=torch.empty(make.width(9)))
    with pytest.raises(PayloadError, match="too long"):
        make.expand(Payload(np.append(sound, np.uint8(0))))


def check_foreign_payloads_are_refused_by_name(make: Compressor) -> None:
    sound = make.compress(vector(9)).data
    for place, byte, message in ((0, 88, "foreign.*begins with b'XvGP'"), (4, 2, "version 2: this side reads version 1")):
        changed = sound.copy()
        changed[place] = byte
        with pytest.raises(PayloadError, match=message):
            make.expand(Payload(changed))
    other = build_compressor("none" if make.info.kind != "none" else "bf16").compress(vector(make.width(9)))
    with pytest.raises(PayloadError, match=f"another kind: .*'{make.info.kind}'"):
        make.expand(other)


def check_other_shapes_are_refused(make: Compressor) -> None:
    wanted = make.width(9)
    if make.projection is None:
        with pytest.raises(PayloadError, match=r"another shape: \d+ of 8 values, where \d+ of 9"):
            make.expand(make.compress(vector(8)), out=torch.empty(wanted))
    else:
        narrower = build_compressor("sketch", **dict(make.info.options) | {"width": wanted - 1})
        with pytest.raises(PayloadError, match=f"another shape: {wanted - 1} of {wanted - 1} values, where {wanted} of {wanted}"):
            make.expand(narrower.compress(vector(9)))


def check_a_damaged_row_is_named_and_nothing_written(make: Compressor) -> None:
    payloads = np.stack([make.compress(vector(9, seed=seed)).data for seed in range(4)])
    payloads[2] = flipped(payloads[2], 8 * len(payloads[2]) - 1)
    room = torch.full((4, make.width(9)), 7.0)
    with pytest.raises(PayloadError, match="row 2: a damaged payload"):
        make.expand_many(payloads, room)
    assert bool((room == 7).all())


def check_wrong_memory_is_refused(make: Compressor) -> None:
    size, width = make.wire_bytes(9), make.width(9)
    for wrong in (torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64)):
        with pytest.raises(UsageError, match="floating-point"):
            make.compress(wrong)
    for out in (np.zeros(size - 1, dtype=np.uint8), np.zeros(size, dtype=np.int8), np.zeros(2 * size, dtype=np.uint8)[::2]):
        with pytest.raises(UsageError, match=f"{size} contiguous bytes"):
            make.compress(vector(9), out=out)
    sound = make.compress(vector(9))
    for room in (torch.zeros(width, dtype=torch.float64), torch.zeros(width, device="meta"), torch.zeros(width).requires_grad_()):
        with pytest.raises(UsageError, match=f"{width} float32 values"):
            make.expand(sound, out=room)
    with pytest.raises((UsageError, PayloadError), match=f"{width + 1}"):
        make.expand(sound, out=torch.zeros(width + 1))
    with pytest.raises(UsageError, match="uint8 with contiguous rows"):
        make.expand_many(sound.data, torch.zeros(1, width))
    with pytest.raises(UsageError, match=f"2 x {width} float32"):
        make.expand_many(np.stack([sound.data] * 2), torch.zeros(1, width))


CHECKS = [value for name, value in sorted(globals().items()) if name.startswith("check_")]


def project(make: Compressor, difference: torch.Tensor) -> torch.Tensor:
    return difference.float() if make.projection is None else make.projection.fold(difference)


def flipped(data: np.ndarray, place: int) -> np.ndarray:
    changed = data.copy()
    changed[place // 8] ^= np.uint8(1 << place % 8)
    return changed


def build(case: tuple[str, dict[str, Any]]) -> Compressor:
    return build_compressor(case[0], **case[1])
