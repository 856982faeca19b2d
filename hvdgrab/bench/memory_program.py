"""One process of `hvdgrab-bench memory`: trains a model of a given size for some steps and prints what memory it took.

    python -m hvdgrab.bench.memory_program 10 cd-grab '{"compression": "sketch"}'

The model is a stack of 1000×1000 linear layers, about a million parameters each.  ``plain`` trains without ordering.
"""

from __future__ import annotations

import json
import resource
import sys
import tracemalloc
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, TensorDataset

from hvdgrab import GraBConfig, GraBOptimizer, GraBSampler

SIDE, EXAMPLES, BATCH = 1000, 64, 4
EPOCHS = 2
"""The second one ends with signs and orders: everything that is ever allocated has been by then."""
_NUMPY = 389047
"""The domain under which NumPy tells tracemalloc of its arrays (numpy.lib.tracemalloc_domain)."""


def main(layers: int, order: str, grab: dict[str, Any]) -> dict[str, object]:
    """Train and measure; all sizes in bytes."""
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
    """The losses of the first and the last step."""
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
    """The most bytes that torch's allocator had given out at one moment since the recording began."""
    most = current = 0
    results = recorded.profiler.kineto_results if recorded.profiler is not None else None
    events: list[Any] = [] if results is None else [event for event in results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        current += event.nbytes()
        most = max(most, current)
    return most


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))))
