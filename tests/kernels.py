"""Checks of Triton kernels: many in one process, in three modes.

Whether Triton interprets is fixed when it is imported, hence a process of its own, which prints a line for each check::

    TRITON_INTERPRET=1 python -m tests.kernels interpreter

``interpreter``: on the host.  ``gpu``: the same checks, compiled, where there is a GPU.  ``compile``: no program runs; every
launch that a call makes is compiled to machine code for a GPU, which needs none.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from tests.real import ROOT, need

MODULES = ("tests.balance.checks_kernels", "tests.compression.checks_kernels")
GENERATIONS = (80, 90)
"""Compute capabilities that are compiled for, in turn."""
_registry: dict[str, tuple[Callable[..., None], bool]] = {}


def check(function: Callable[[str], None]) -> Callable[[str], None]:
    """Register a check that runs kernels: it is given the device."""
    _registry[f"{function.__module__}.{function.__name__}"] = (function, False)
    return function


def compile_check(function: Callable[[], None]) -> Callable[[], None]:
    """Register a check that only compiles."""
    _registry[f"{function.__module__}.{function.__name__}"] = (function, True)
    return function


def names(module: str) -> list[Any]:
    """Parameters of a test, (mode, name) for each check of a module."""
    importlib.import_module(module)
    modes = ("interpreter", "gpu") if torch.cuda.is_available() else ("interpreter",)
    return [
        pytest.param(mode, name, id=f"{mode}-{name.rsplit('.', 1)[-1]}")
        for name, (_, compiles) in _registry.items()
        for mode in (("compile",) if compiles else modes)
        if name.startswith(module + ".")
    ]


@functools.cache
def outcomes(mode: str) -> dict[str, str]:
    """Run all checks of a mode in one process: name -> "" or the traceback; under "" how the process ended."""
    need("Triton", importlib.util.find_spec("triton") is not None)
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TRITON_INTERPRET": str(int(mode == "interpreter")), "TRITON_CACHE_DIR": cache}
        result = subprocess.run(
            [sys.executable, "-m", "tests.kernels", mode],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    ended = f"the process ended with {result.returncode} before this check was through: {result.stderr}"
    return {"": ended, **dict(json.loads(line) for line in result.stdout.splitlines())}


def assert_passed(mode: str, name: str) -> None:
    text = outcomes(mode).get(name, outcomes(mode)[""])
    assert not text, text


class Recorder:
    """Stands in for a program: a launch compiles what it would run, if that is new and wanted, and keeps the code."""

    def __init__(self, program: Any, wanted: Callable[[dict[str, Any]], object]) -> None:
        self.program, self.wanted = program, wanted
        self.codes: list[dict[str, Any]] = []
        self._known: set[str] = set()

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert 0 < grid[0] < 2**31
        return self.launch

    def launch(self, *args: Any, num_warps: int = 4, **constants: Any) -> None:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        parameters = self.program.params
        values = {**dict(zip([one.name for one in parameters], args, strict=False)), **constants}
        assert list(values) == [one.name for one in parameters]
        types, fixed, attributes = {}, {}, {}
        for place, one in enumerate(parameters):
            types[one.name], aligned = specialise(values[one.name], one)
            if types[one.name] == "constexpr":
                fixed[(place,)] = values[one.name]
            if aligned:
                attributes[(place,)] = [["tt.divisibility", 16]]
        key = repr((types, fixed, attributes, num_warps))
        if key not in self._known and self.wanted(values):
            self._known.add(key)
            source = ASTSource(self.program, types, fixed, attributes)
            target = GPUTarget("cuda", GENERATIONS[len(self.codes) % len(GENERATIONS)], 32)
            self.codes.append(triton.compile(source, target=target, options={"num_warps": num_warps}).asm)


def specialise(value: Any, parameter: Any) -> tuple[str, bool]:
    """Type of an argument as a launch on a GPU gives it, and whether it is known as a multiple of 16."""
    from triton.runtime.jit import mangle_type

    if parameter.is_constexpr:
        return "constexpr", False
    if isinstance(value, torch.Tensor):
        return mangle_type(value), True
    if isinstance(value, int) and not parameter.do_not_specialize:
        return ("constexpr", False) if value == 1 else (mangle_type(value), value % 16 == 0)
    return mangle_type(value), False


@contextmanager
def compiling(
    kernels: Any, programs: str, wanted: Callable[[dict[str, Any]], object] = lambda _: True
) -> Iterator[SimpleNamespace]:
    """Within the block the module `kernels` launches recorders of the programs in the module `programs`, on any device.

    ``wanted``: given the arguments of a launch, whether it is to be compiled.
    """
    from triton.runtime import JITFunction

    module = importlib.import_module(programs)
    recorders = {name: Recorder(one, wanted) for name, one in vars(module).items() if isinstance(one, JITFunction)}
    stand_in = SimpleNamespace(**{**vars(module), **recorders})
    with (
        mock.patch.object(kernels, "import_programs", lambda _: stand_in),
        mock.patch.object(kernels, "check_device", lambda *_: None),
    ):
        yield SimpleNamespace(**recorders)


def main(mode: str) -> None:
    torch.set_num_threads(1)
    for module in MODULES:
        importlib.import_module(module)
    for name, (function, compiles) in _registry.items():
        if compiles == (mode == "compile"):
            try:
                function(*([] if compiles else ["cuda" if mode == "gpu" else "cpu"]))
                text = ""
            except Exception:
                text = traceback.format_exc()
            print(json.dumps([name, text]), flush=True)


if __name__ == "__main__":
    faulthandler.enable()
    from tests import kernels as harness  # the module that the checks register with is not __main__

    harness.main(sys.argv[1])
