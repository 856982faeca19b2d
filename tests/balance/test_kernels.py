from __future__ import annotations

import sys
from unittest import mock

import pytest
import torch

from hvdgrab import gpu
from hvdgrab.balance.backends import kernels
from hvdgrab.errors import ConfigError, UsageError
from tests.kernels import assert_passed, names


@pytest.mark.parametrize(("mode", "name"), names("tests.balance.checks_kernels"))
def test_kernels(mode, name):
    assert_passed(mode, name)


def test_without_triton_the_message_says_how_to_get_it():
    with mock.patch.dict(sys.modules, {"triton": None}), pytest.raises(ConfigError, match=r"pip install 'triton>=3\.3'"):
        kernels.balance(torch.zeros(2, 3), torch.zeros(3))


def test_an_old_triton_is_refused():
    with (
        mock.patch.dict(sys.modules, {"triton": mock.Mock(__version__="3.2.0")}),
        pytest.raises(ConfigError, match=r"3\.3 or newer, found 3\.2\.0"),
    ):
        gpu.import_programs("hvdgrab.balance.backends.programs")
    with mock.patch.dict(sys.modules, {"triton": mock.Mock(__version__="3.10.0+git")}):
        assert gpu.import_programs("hvdgrab.gpu") is gpu


ROWS, SUM = torch.zeros(2, 3), torch.zeros(3)


@pytest.mark.parametrize(
    ("rows", "running_sum", "message"),
    [
        (ROWS[0], SUM, r"\(3,\) and \(3,\)"),
        (ROWS, torch.zeros(4), r"\(2, 3\) and \(4,\)"),
        (ROWS.int(), SUM, "not int32"),
        (ROWS, SUM.double(), "must be float32.* it is float64"),
        (ROWS, SUM.to("meta"), "move one"),
        (ROWS, SUM, "CUDA device, not on cpu"),
    ],
)
def test_wrong_input_is_one_clear_error(rows, running_sum, message):
    with mock.patch.object(kernels, "import_programs"), pytest.raises(UsageError, match=message):
        kernels.balance(rows, running_sum)
