"""``hvdgrab-bench memory``: the same training with and without ordering, for models of several sizes.

Each training runs in a process of its own, which prints its memory use:

    python -m hvdgrab.bench.memory 10 cd-grab '{"compression": "sketch"}'

The model is a stack of 1000×1000 linear layers, about a million parameters each.  ``plain`` trains without ordering.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from hvdgrab import GraBConfig, GraBOptimizer, GraBSampler
from hvdgrab.bench.runs import Variant, failure

Row = dict[str, object]
MEBI = 2**20
SIDE, EXAMPLES, BATCH = 1000, 64, 4
EPOCHS = 2
"""By the end of the second epoch, which makes signs and orders, everything has been allocated."""
_NUMPY = 389047
"""The tracemalloc domain of NumPy's arrays (numpy.lib.tracemalloc_domain)."""


def memory(sizes: Sequence[int], variants: Sequence[Variant], *, tell: Callable[[Row], None] | None = None) -> list[Row]:
    """Measure one row a size and variant, in MiB: torch's peak without ordering, and what ordering adds.

    ``tensors`` is the peak of torch's allocator, ``arrays`` what NumPy holds at the end, ``rss`` the process's peak, which
    includes imported code.  ``wrong`` is not 0 if a run did not train, or loaded numba without need.
    """
    rows: list[Row] = []
    for size in sizes:
        plain = _run(size, "plain", {})
        for variant in variants:
            ordered = _run(size, variant.order, variant.grab)
            rows.append({"millions": size, "order": str(variant), **compare(plain, ordered)})
            if tell is not None:
                tell(rows[-1])
    return rows


def compare(plain: dict[str, Any], ordered: dict[str, Any]) -> Row:
    """Compute the figures of one row."""
    extra = {name: (ordered[name] - plain[name]) / MEBI for name in ("tensors", "arrays", "rss")}
    return {
        "plain_tensors": plain["tensors"] / MEBI,
        **{f"extra_{name}": value for name, value in extra.items()},
        "extra": extra["tensors"] + extra["arrays"],
        "wrong": int(plain["tensors"] <= 0) + int(ordered["numba"]) + sum(map(_odd, (plain, ordered))),
    }


def _odd(run: dict[str, Any]) -> int:
    first, last = run["losses"]
    return int(not (0 < last < 100 and 0 < first < 100))


def _run(size: int, order: str, grab: Mapping[str, object]) -> dict[str, Any]:
    command = [sys.executable, "-m", "hvdgrab.bench.memory", str(size), order, json.dumps(grab)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise failure(f"the training of {size} million parameters under '{order}' failed", done.stderr)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def measure(layers: int, order: str, grab: dict[str, Any]) -> dict[str, object]:
    """Train and measure, with all sizes in bytes."""
    torch.set_num_threads(1)
    tracemalloc.start()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        losses = train(layers, order, grab)
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, _NUMPY)])
    return {
        "tensors": peak(recorded),
        "arrays": sum(trace.size for trace in snapshot.traces),
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "numba": "numba" in sys.modules,
        "losses": losses,
    }


def train(layers: int, order: str, grab: dict[str, Any]) -> list[float]:
    """Train, and return the losses of the first and the last step."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(EXAMPLES, SIDE), torch.randint(SIDE, (EXAMPLES,)))
    model = nn.Sequential(*(nn.Linear(SIDE, SIDE) for _ in range(layers)))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    if order == "plain":
        loader = DataLoader(data, batch_size=BATCH)
    else:
        sampler = GraBSampler(data, BATCH, config=GraBConfig.resolve(order=order, **grab))
        loader = DataLoader(data, batch_sampler=sampler)
        optimizer = GraBOptimizer(optimizer, sampler, model)
    losses = []
    for _ in range(EPOCHS):
        for inputs, classes in loader:
            loss = nn.functional.cross_entropy(model(inputs), classes)
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
    if order != "plain":
        optimizer.close()
        if sampler.epoch != EPOCHS - 1:
            raise SystemExit(f"ended in epoch {sampler.epoch}, not {EPOCHS - 1}")
    return [losses[0], losses[-1]]


def peak(recorded: profile) -> int:
    """The most bytes that torch's allocator had handed out at a time during the recording."""
    most = current = 0
    results = recorded.profiler.kineto_results if recorded.profiler is not None else None
    events: list[Any] = [] if results is None else [event for event in results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        most = max(most, current)
    return most


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))))
