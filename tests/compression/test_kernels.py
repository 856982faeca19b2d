from __future__ import annotations

import sys
from unittest import mock

import pytest
import torch

from hvdgrab.compression import kernels
from hvdgrab.compression.kernels import POOL
from hvdgrab.errors import ConfigError, UsageError
from tests.kernels import assert_passed, names


@pytest.mark.parametrize(("mode", "name"), names("tests.compression.checks_kernels"))
def test_kernels(mode, name):
    assert_passed(mode, name)


def test_without_triton_the_message_says_how_to_get_it():
    with mock.patch.dict(sys.modules, {"triton": None}):
        for call in (lambda: kernels.fold_pieces(ROWS, [], SIGNS), lambda: kernels.finish(ROWS, ROWS)):
            with pytest.raises(ConfigError, match=r"pip install 'triton>=3\.3'"):
                call()


ROWS, SIGNS, PIECE = torch.zeros(POOL, 2), torch.ones(3), torch.zeros(5)


@pytest.mark.parametrize(
    ("rows", "piece", "signs", "alpha", "message"),
    [
        (ROWS[0], (PIECE, 0), SIGNS, 1.0, r"not torch.float32 of shape \(2,\)"),
        (torch.zeros(POOL + 1, 2), (PIECE, 0), SIGNS, 1.0, r"shape \(65, 2\)"),
        (torch.zeros(2, POOL).t(), (PIECE, 0), SIGNS, 1.0, "contiguous"),
        (ROWS.double(), (PIECE, 0), SIGNS, 1.0, "not torch.float64"),
        (ROWS, (PIECE[None], 0), SIGNS, 1.0, r"of shape \(1, 5\)"),
        (ROWS, (torch.zeros(10)[::2], 0), SIGNS, 1.0, "contiguous"),
        (ROWS, (PIECE.int(), 0), SIGNS, 1.0, "not torch.int32"),
        (ROWS, (PIECE, -1), SIGNS, 1.0, "at -1"),
        (ROWS, (PIECE.to("meta"), 0), SIGNS, 1.0, "on meta"),
        (ROWS, (PIECE, 3 * 128 - 4), SIGNS, 1.0, r"4 block signs are needed, not \(3,\)"),
        (ROWS[:4], (PIECE, 4), SIGNS, 1.0, "4 rows of 2 hold no coordinate 8"),
        (ROWS, (PIECE, 0), SIGNS.half(), 1.0, "not torch.float16"),
        (ROWS, (PIECE, 0), SIGNS, torch.ones(2), "not 2 torch.float32"),
        (ROWS, (PIECE, 0), SIGNS, torch.ones(1).double(), "not 1 torch.float64"),
        (ROWS, (PIECE, 3 * 128 - 5), SIGNS, 1.0, "CUDA device, not on cpu"),
    ],
)
def test_wrong_input_is_one_clear_error(rows, piece, signs, alpha, message):
    with mock.patch.object(kernels, "import_programs"), pytest.raises(UsageError, match=message):
        kernels.fold_pieces(rows, [piece], signs, alpha)


@pytest.mark.parametrize("pool", [torch.ones(POOL, 3), torch.ones(2, POOL).t(), torch.ones(POOL, 2).half()])
def test_wrong_signs_of_the_pool_are_refused(pool):
    with mock.patch.object(kernels, "import_programs"), pytest.raises(UsageError, match="signs must be"):
        kernels.finish(ROWS, pool)
