"""Arguments of the examples, and their world of ranks, which is Horovod's or a single process."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from hvdgrab import init, mark_finished
from hvdgrab.config import ORDERS, GraBConfig
from hvdgrab.errors import ConfigError, HvdGrabError, UsageError, WorldError

Loss = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes (model, inputs, targets), returns the mean loss of a batch."""
EVALUATED = 128
"""Examples in a batch of an evaluation."""
_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID", "HOROVOD_SIZE", "HOROVOD_RANK")
"""Environment variables that are set if a launcher started this process as one rank of several."""


class DataError(HvdGrabError, RuntimeError):
    """A data set cannot be found, or its files are damaged."""


def run(main: Callable[[], None]) -> None:
    """Run an example; an error of the user, which every rank finds alike, is printed in one sentence, with exit code 1."""
    try:
        main()
    except (ConfigError, DataError, UsageError, WorldError) as error:
        sys.exit(f"error: {error}")


def arguments(description: str | None, *, epochs: int, batch_size: int, lr: float) -> argparse.ArgumentParser:
    """Make the parser of an example's command line, with its three defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=_positive, default=epochs, help="passes over the data (default: %(default)s)")
    parser.add_argument("--batch-size", type=_positive, default=batch_size, help="examples a unit (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=lr, help="learning rate at the start (default: %(default)s)")
    parser.add_argument("--order", choices=ORDERS, help="rule of the data order (default: the job's YAML, else cd-grab)")
    parser.add_argument("--seed", type=int, help="seed of model, units and orders (default: the job's YAML, else 0)")
    parser.add_argument("--workers", type=int, default=0, help="loader processes of each rank (default: %(default)s)")
    parser.add_argument("--limit", type=_positive, help="use only so many training examples")
    parser.add_argument("--backward-passes", type=_positive, default=1, help="units whose gradients are added before a step")
    parser.add_argument("--full-loss", action="store_true", help="also log the loss of all training examples after each epoch")
    parser.add_argument("--no-grab", action="store_true", help="plain Horovod with DistributedSampler, for comparison")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not a positive number")
    return value


def seed_everything(args: argparse.Namespace) -> int:
    """Seed torch with the seed of the data order, and return it."""
    seed = GraBConfig.resolve(seed=args.seed).seed
    torch.manual_seed(seed)
    return seed


def limited(dataset: TensorDataset, limit: int | None) -> TensorDataset:
    """Take the first ``limit`` examples of a dataset, or all."""
    return TensorDataset(*(tensor[:limit] for tensor in dataset.tensors))


def step_is_due(unit: int, units: int, backward_passes: int) -> bool:
    """Whether unit number ``unit`` of an epoch (from 0) ends a window of gradient accumulation; the last window may be short."""
    return (unit + 1) % backward_passes == 0 or unit + 1 == units


@torch.no_grad()
def mean_loss(name: str, loss_of: Loss, model: nn.Module, dataset: TensorDataset, world: World) -> float:
    """Mean loss over a whole dataset at constant weights, of which every rank computes a part.

    A training logs the loss of each unit *before* its step, which also depends on how similar successive units are; hence orders
    are compared by this loss.
    """
    inputs, targets = (tensor[world.rank :: world.size] for tensor in dataset.tensors)
    total = 0.0
    for start in range(0, len(inputs), EVALUATED):
        part, truth = (tensor[start : start + EVALUATED].to(world.device) for tensor in (inputs, targets))
        total += float(loss_of(model, part, truth)) * len(part)
    return world.mean(name, total, len(inputs))


@dataclass(frozen=True)
class World:
    """The ranks of this run: Horovod's, or one process without Horovod.

    Every rank must call all collective methods.  Each call has a name, because Horovod numbers unnamed operations locally, and
    one extra operation on one rank would stall all later ones.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    hvd: Any = None
    """The module ``horovod.torch``, or None in a single process."""

    @classmethod
    def start(cls) -> World:
        """Join the other ranks if a launcher started this process; else make a world of one process without Horovod.

        Raises:
            WorldError: a launcher started several ranks, but Horovod cannot be imported, so that each would train alone.
        """
        launched = next((name for name in _LAUNCHED if name in os.environ), None)
        if launched is None:
            return cls()
        try:
            hvd = importlib.import_module("horovod.torch")
        except ImportError as error:
            raise WorldError(f"started as one rank of several ({launched} is set), but Horovod is missing: {error}") from error
        init()  # hvd.init() over the ranks that train, since a job may also have a server
        if "OMP_NUM_THREADS" not in os.environ:  # else torch uses every core in every rank
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // hvd.local_size()))
        return cls(hvd.rank(), hvd.size(), hvd.local_rank(), hvd)

    @property
    def device(self) -> torch.device:
        """This rank's GPU, or the CPU if there is none."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", self.local_rank % torch.cuda.device_count())

    def distribute(self, optimizer: torch.optim.Optimizer, model: nn.Module, backward_passes: int = 1) -> torch.optim.Optimizer:
        """Broadcast the weights, and wrap the optimizer so that it averages gradients over ranks, as Horovod scripts do."""
        if self.hvd is None:
            return optimizer
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        distributed: torch.optim.Optimizer = self.hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), backward_passes_per_step=backward_passes
        )
        return distributed

    def clip_and_step(self, optimizer: Any, model: nn.Module, largest: float) -> None:
        """Step with the averaged gradient scaled down to a norm of at most ``largest``; 0: not scaled.

        As Horovod documents it: wait for the averages (``synchronize``), change them, then step without waiting again.
        """
        if not largest:
            optimizer.step()
            return
        if self.hvd is not None:
            optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), largest)
        with optimizer.skip_synchronize() if self.hvd is not None else nullcontext():
            optimizer.step()

    def mean(self, name: str, total: float | torch.Tensor, count: int) -> float:
        """Divide the sum of ``total`` by the sum of ``count`` over all ranks."""
        pair = torch.tensor([float(total), float(count)], dtype=torch.float64)
        if self.hvd is not None:
            pair = self.hvd.allreduce(pair, name=name, op=self.hvd.Sum)
        return float(pair[0] / pair[1])

    def gather(self, name: str, value: int) -> list[int]:
        """Gather an integer of every rank, in rank order."""
        mine = torch.tensor([value], dtype=torch.int64)
        return [value] if self.hvd is None else [int(item) for item in self.hvd.allgather(mine, name=name)]

    def finished(self) -> None:
        """Tell the launcher, on rank 0, that the result is complete."""
        if self.rank == 0:
            mark_finished()

    def say(self, epoch: int, epochs: int, **figures: float) -> None:
        """Print one line an epoch, on rank 0."""
        if self.rank == 0:
            shown = "  ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in figures.items())
            print(f"epoch {epoch + 1:>3}/{epochs}  {shown}", flush=True)
