"""The examples' training with W simulated ranks in one process, for machines with fewer than W cores.

Units, orders and balancing are the library's own functions; sums in memory replace Horovod's averaging and the messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from hvdgrab.balance import balance_pairs, next_order, seeded_order
from hvdgrab.balance.meters import BoundSketch
from hvdgrab.bench.convergence import Curve
from hvdgrab.bench.runs import Variant
from hvdgrab.compression import build_compressor
from hvdgrab.compression.fold import FoldSketch
from hvdgrab.examples import common, digits, lstm_wikitext2, m4_mlp
from hvdgrab.examples.data import M4_WEEKLY, WIKITEXT2, locate
from hvdgrab.training.units import form_units

Orders = NDArray[np.int64]
BOUND_WIDTH = 256


@dataclass(frozen=True)
class Recipe:
    """How an example trains, with the defaults of its command line and its scheduler."""

    data: TensorDataset
    model: Callable[[], nn.Module]
    loss: Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    step_size: int
    gamma: float


def recipe(example: str) -> Recipe:
    """The recipe of one of the three examples."""
    world = common.World()
    if example == "m4_mlp":
        data = m4_mlp.load(locate(M4_WEEKLY, world)).train
        return Recipe(data, m4_mlp.MLP, m4_mlp.loss_of, 30, 8, 1e-3, 0.9, 10, 0.25)
    if example == "lstm_wikitext2":
        train, _, words = lstm_wikitext2.load(locate(WIKITEXT2, world))
        return Recipe(train, lambda: lstm_wikitext2.LanguageModel(words), lstm_wikitext2.loss_of, 40, 4, 5.0, 0.9, 10, 0.1)
    train, _ = digits.load()
    return Recipe(train, digits.LeNet, digits.loss_of, 30, 8, 0.1, 0.0, 10**9, 1.0)


class Simulation:
    """One training of W ranks under one order."""

    def __init__(
        self, example: str, variant: Variant, seed: int, *, ranks: int, limit: int | None, batch_size: int | None
    ) -> None:
        self.recipe, self.variant, self.seed, self.ranks = recipe(example), variant, seed, ranks
        self.order = variant.order
        options = {"seed": seed} if variant.compression == "sketch" else {}
        self.compressor = build_compressor(variant.compression or "none", **options)
        self.tensors = [tensor[:limit] for tensor in self.recipe.data.tensors]
        self.batch_size = batch_size or self.recipe.batch_size
        torch.manual_seed(seed)
        self.model = self.recipe.model()
        self.parameters = list(self.model.parameters())
        self.d = sum(parameter.numel() for parameter in self.parameters)
        self.fold = FoldSketch(BOUND_WIDTH, seed).fold
        self._deal(0)
        self.orders = self._seeded(0)

    def run(self, epochs: int | None) -> Curve:
        """Train for ``epochs`` epochs, or as many as the example does."""
        made = self.recipe
        sgd = torch.optim.SGD(self.parameters, lr=made.lr, momentum=made.momentum)
        scheduler = torch.optim.lr_scheduler.StepLR(sgd, made.step_size, made.gamma)
        began = time.perf_counter()
        curve = Curve(str(self.variant), self.seed, [], [], [], {}, 0.0)
        for epoch in range(epochs or made.epochs):
            if self.order == "reshuffle":
                self._deal(epoch)
            self._epoch(epoch, sgd, curve)
            scheduler.step()
            curve.full_loss.append(self._full_loss())
        return replace(curve, seconds=time.perf_counter() - began)

    def _epoch(self, epoch: int, sgd: torch.optim.Optimizer, curve: Curve) -> None:
        meters = [
            BoundSketch(self.n, order=order, epoch=epoch, seed=self.seed, rank=rank, fold=self.fold, width=BOUND_WIDTH)
            for rank, order in enumerate(self.orders)
        ]
        width = self.compressor.width(self.d)
        sums = np.zeros((self.ranks if self.order == "id-grab" else 1, width), dtype=np.float32)
        signs = np.zeros((self.ranks, self.n // 2), dtype=np.int8)
        first, total = torch.empty(self.ranks, self.d), 0.0
        for position in range(self.n):
            vectors, losses = self._gradients(position)
            for rank, meter in enumerate(meters):
                meter.add(position, int(self.orders[rank, position]), vectors[rank])
            if position % 2 == 0:
                first.copy_(vectors)
            elif self.order in ("cd-grab", "id-grab"):
                for rank in range(self.ranks):
                    row = sums[rank if self.order == "id-grab" else 0]
                    seen = self.compressor.expand(self.compressor.compress(first[rank] - vectors[rank])).numpy()
                    signs[rank, position // 2] = balance_pairs(seen[np.newaxis], row)[0][0]
            self._step(vectors.mean(0), sgd)
            total += losses
        curve.train_loss.append(total / (self.n * self.ranks))
        summed = np.stack([meter.buffer for meter in meters]).sum(axis=0)
        curve.bound_vs_random.append(meters[0].result(summed).l2_vs_random)
        balanced = self.order in ("cd-grab", "id-grab")
        rows = [next_order(order, row) for order, row in zip(self.orders, signs, strict=True)]
        self.orders = np.stack(rows) if balanced else self._seeded(epoch + 1)

    def _gradients(self, position: int) -> tuple[torch.Tensor, float]:
        vectors, total = torch.empty(self.ranks, self.d), 0.0
        for rank in range(self.ranks):
            members = torch.from_numpy(self.units.members(rank, int(self.orders[rank, position])))
            loss = self.recipe.loss(self.model, *(tensor[members] for tensor in self.tensors))
            torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, self.parameters)], out=vectors[rank])
            total += float(loss.detach())
        return vectors, total

    def _step(self, gradient: torch.Tensor, sgd: torch.optim.Optimizer) -> None:
        start = 0
        for parameter in self.parameters:
            parameter.grad = gradient[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        sgd.step()

    def _full_loss(self) -> float:
        with torch.no_grad():
            return common.mean_loss("", self.recipe.loss, self.model, TensorDataset(*self.tensors), common.World())

    def _deal(self, epoch: int) -> None:
        examples = len(self.tensors[0])
        self.units = form_units(examples, self.ranks, self.batch_size, self.seed, epoch=epoch, shuffle=self.order != "fixed")
        self.n = self.units.n

    def _seeded(self, epoch: int) -> Orders:
        settings = {"n": self.n, "epoch": epoch, "seed": self.seed, "size": self.ranks}
        return np.stack([seeded_order(self.order, rank=rank, **settings) for rank in range(self.ranks)])
