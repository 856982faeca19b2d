"""Hand-written digits: a small LeNet on scikit-learn's 1,797 images of 8×8 pixels.  The quickstart.

    mpirun -np 4 python -m hvdgrab.examples.digits          any launcher; one process without a launcher
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvdgrab import GraBOptimizer, GraBSampler
from hvdgrab.examples.baseline import PlainOptimizer, PlainSampler, baseline
from hvdgrab.examples.common import World, arguments, limited, mean_loss, run, seed_everything, step_is_due

TEST_EVERY = 5
"""Every fifth image is held out: 1,438 for training, 359 for testing."""

MEAN, DEVIATION = 4.9, 6.0
"""Mean and deviation of all pixels, whose values are 0 … 16."""


class LeNet(nn.Sequential):
    """Two convolutions and two linear layers for 8×8 images; 13,706 parameters.

    Input (batch, 1, 8, 8) float32, output (batch, 10) logits.
    """

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10),
        )  # fmt: skip


def load() -> tuple[TensorDataset, TensorDataset]:
    """Load training and test images (N, 1, 8, 8) float32, standardised, with their labels (N,) int64."""
    digits = load_digits()
    images = torch.tensor((digits.images - MEAN) / DEVIATION, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    test = torch.arange(len(labels)) % TEST_EVERY == TEST_EVERY - 1
    return TensorDataset(images[~test], labels[~test]), TensorDataset(images[test], labels[test])


def loss_of(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy."""
    return F.cross_entropy(model(images), labels)


@torch.no_grad()
def accuracy(model: nn.Module, test: TensorDataset, world: World) -> float:
    """Share of test images that are recognised, of which every rank tests a part."""
    images, labels = (tensor[world.rank :: world.size].to(world.device) for tensor in test.tensors)
    return world.mean("digits.accuracy", (model(images).argmax(1) == labels).sum(), len(labels))


def main() -> None:
    """Train, and print one line an epoch."""
    args = arguments(__doc__, epochs=30, batch_size=8, lr=0.1).parse_args()
    world = World.start()
    seed = seed_everything(args)
    train, test = load()
    dataset = limited(train, args.limit)
    model = LeNet().to(world.device)
    sgd = torch.optim.SGD(model.parameters(), lr=args.lr)
    inner = world.distribute(sgd, model, args.backward_passes)  # hvd.DistributedOptimizer(sgd, model.named_parameters())

    sampler: GraBSampler | PlainSampler
    optimizer: GraBOptimizer | PlainOptimizer
    if args.no_grab:
        sampler, loader, optimizer = baseline(dataset, args, inner, world, seed)
    else:  # the three lines that a Horovod script changes
        sampler = GraBSampler(dataset, batch_size=args.batch_size, seed=args.seed, order=args.order)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=args.workers)
        optimizer = GraBOptimizer(inner, sampler, model, total_epochs=args.epochs)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        started, total = time.perf_counter(), 0.0
        for unit, (images, labels) in enumerate(loader):
            loss = loss_of(model, images.to(world.device), labels.to(world.device))
            (loss / args.backward_passes).backward()
            if step_is_due(unit, len(loader), args.backward_passes):
                optimizer.step()
                optimizer.zero_grad()
            optimizer.log(loss=loss)
            total += float(loss.detach())
        optimizer.log(train_seconds=time.perf_counter() - started)
        figures = {"test_accuracy": accuracy(model, test, world)}
        if args.full_loss:
            figures["full_loss"] = mean_loss("digits.full", loss_of, model, dataset, world)
        optimizer.log(**figures)
        world.say(epoch, args.epochs, train_loss=world.mean("digits.loss", total, len(loader)), **figures)
    optimizer.close()
    world.finished()


if __name__ == "__main__":
    run(main)
