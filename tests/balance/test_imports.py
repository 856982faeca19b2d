from __future__ import annotations

import subprocess
import sys

import hvdgrab.balance


def test_no_torch_no_mpi_no_horovod():
    modules = "hvdgrab.balance, hvdgrab.balance.reference, hvdgrab.training.units"
    heavy = ("torch", "mpi4py", "horovod", "numba", "triton")
    code = f"import sys, {modules}; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_numpy_input_needs_no_torch():
    code = (
        "import sys, numpy as np; from hvdgrab.balance import *; h = np.zeros(2, np.float32);"
        "s = pair_balance(np.ones((1, 2), np.float32), h); next_order(np.arange(3), s);"
        "herding_bound(np.zeros((1, 2, 1)), np.array([[1, 0]])); m = MeanBalance(2, 1); m.add(np.ones(1)); m.next_order();"
        "order_offline(np.ones((4, 2))); r = build_rule('recursive', n=4, d=2); r.add(np.ones(2)); r.add(np.ones(2));"
        "print('torch' in sys.modules, 'numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False False\n"


def test_what_the_room_offers_is_there():
    for name in hvdgrab.balance.__all__:
        assert getattr(hvdgrab.balance, name).__doc__
    assert hvdgrab.balance.__all__ == sorted(hvdgrab.balance.__all__)
