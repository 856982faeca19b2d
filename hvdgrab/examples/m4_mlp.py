"""Forecasting: an autoregressive MLP on the 359 weekly series of the M4 competition, as in the CD-GraB paper.

The model reads 20 weeks and forecasts the next 6.  For longer forecasts, its own output becomes input.

    mpirun -np 4 python -m hvdgrab.examples.m4_mlp          any launcher; one process without a launcher
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvdgrab import GraBOptimizer, GraBSampler
from hvdgrab.examples.baseline import PlainOptimizer, PlainSampler, baseline
from hvdgrab.examples.common import World, arguments, limited, mean_loss, run, seed_everything, step_is_due
from hvdgrab.examples.data import M4_WEEKLY, locate, read_series

INPUT, OUTPUT, STRIDE, HORIZON = 20, 6, 3, 13  # weeks
TRAIN_SHARE = 0.9


class MLP(nn.Sequential):
    """Three hidden layers of 64 units.  Input (batch, 20) float32, output (batch, 6) float32, both standardised."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(INPUT, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, OUTPUT)
        )


@dataclass(frozen=True)
class Weekly:
    """The training data, windows of 26 weeks, and the data of the test forecasts."""

    train: TensorDataset
    """Inputs (N, 20) and targets (N, 6) float32: the first 90 % of every series' windows."""
    valid: TensorDataset
    """The later windows of every series."""
    last: torch.Tensor
    """(series, 20) float32: the last weeks of every series, standardised."""
    mean: np.ndarray
    """(series, 1) float64."""
    std: np.ndarray
    """(series, 1) float64."""
    future: np.ndarray
    """(series, 13) float64: the true values after the last weeks."""


def windows(series: np.ndarray) -> np.ndarray:
    """Cut (length,) values into windows (windows, 26) that start every third week."""
    return np.lib.stride_tricks.sliding_window_view(series, INPUT + OUTPUT)[::STRIDE]


def load(folder: Path) -> Weekly:
    """Read, standardise every series by its own mean and deviation, and cut it into windows."""
    known, future = read_series(folder / "train.csv"), read_series(folder / "test.csv")
    names = list(known)
    mean = np.array([known[name].mean() for name in names])[:, None]
    std = np.array([max(float(known[name].std()), 1e-8) for name in names])[:, None]
    scaled = [(known[name] - mean[row]) / std[row] for row, name in enumerate(names)]
    cut = [windows(series) for series in scaled]
    shares = [round(TRAIN_SHARE * len(rows)) for rows in cut]
    return Weekly(
        train=_dataset([rows[:share] for rows, share in zip(cut, shares, strict=True)]),
        valid=_dataset([rows[share:] for rows, share in zip(cut, shares, strict=True)]),
        last=torch.tensor(np.stack([series[-INPUT:] for series in scaled]), dtype=torch.float32),
        mean=mean, std=std, future=np.stack([future[name][:HORIZON] for name in names]),
    )  # fmt: skip


def _dataset(rows: list[np.ndarray]) -> TensorDataset:
    values = torch.tensor(np.concatenate(rows), dtype=torch.float32)
    return TensorDataset(values[:, :INPUT].clone(), values[:, INPUT:].clone())


def loss_of(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean squared error, of standardised values."""
    return F.mse_loss(model(inputs), targets)


@torch.no_grad()
def forecast(model: nn.Module, last: torch.Tensor, steps: int = HORIZON) -> torch.Tensor:
    """Forecast (series, steps) from (series, 20) known weeks; each output becomes a part of the next input."""
    weeks = last
    while weeks.shape[1] < last.shape[1] + steps:
        weeks = torch.cat([weeks, model(weeks[:, -INPUT:])], dim=1)
    return weeks[:, last.shape[1] : last.shape[1] + steps]


def smape(forecasts: np.ndarray, truth: np.ndarray) -> float:
    """Symmetric mean absolute percentage error, in percent (M4's definition): mean of 200·|y − f| / (|y| + |f|)."""
    scale = np.abs(truth) + np.abs(forecasts)
    return float(np.mean(200 * np.abs(truth - forecasts) / np.where(scale > 0, scale, 1)))


@torch.no_grad()
def evaluate(model: nn.Module, data: Weekly, world: World) -> dict[str, float]:
    """Mean squared error of the later windows (standardised), and SMAPE of the test forecasts."""
    standardised = forecast(model, data.last.to(world.device)).double().cpu().numpy()
    error = mean_loss("m4.valid", loss_of, model, data.valid, world)
    return {"valid_loss": error, "test_smape": smape(standardised * data.std + data.mean, data.future)}


def main() -> None:
    """Train, and print one line an epoch."""
    args = arguments(__doc__, epochs=30, batch_size=8, lr=1e-3).parse_args()
    world = World.start()
    seed = seed_everything(args)
    data = load(locate(M4_WEEKLY, world))
    dataset = limited(data.train, args.limit)
    model = MLP().to(world.device)
    sgd = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    inner = world.distribute(sgd, model, args.backward_passes)  # hvd.DistributedOptimizer(sgd, model.named_parameters())

    sampler: GraBSampler | PlainSampler
    optimizer: GraBOptimizer | PlainOptimizer
    if args.no_grab:
        sampler, loader, optimizer = baseline(dataset, args, inner, world, seed)
    else:  # the three lines that a Horovod script changes
        sampler = GraBSampler(dataset, batch_size=args.batch_size, seed=args.seed, order=args.order)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=args.workers)
        optimizer = GraBOptimizer(inner, sampler, model, total_epochs=args.epochs)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.25)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        started, total = time.perf_counter(), 0.0
        for unit, (inputs, targets) in enumerate(loader):
            loss = loss_of(model, inputs.to(world.device), targets.to(world.device))
            (loss / args.backward_passes).backward()
            if step_is_due(unit, len(loader), args.backward_passes):
                optimizer.step()
                optimizer.zero_grad()
            optimizer.log(loss=loss)
            total += float(loss.detach())
        optimizer.log(train_seconds=time.perf_counter() - started)
        scheduler.step()
        figures = evaluate(model, data, world)
        if args.full_loss:
            figures["full_loss"] = mean_loss("m4.full", loss_of, model, dataset, world)
        optimizer.log(**figures)
        world.say(epoch, args.epochs, train_loss=world.mean("m4.loss", total, len(loader)), **figures)
    optimizer.close()
    world.finished()


if __name__ == "__main__":
    run(main)
