"""Language model: a two-layer LSTM on WikiText-2, as in the CD-GraB paper but on a smaller text.

It trains on WikiText-2's ``test.txt`` (241,211 words) and validates on ``valid.txt``.  Do not compare its figures with those of
models that were trained on ``train.txt``.

    mpirun -np 4 python -m hvdgrab.examples.lstm_wikitext2          any launcher; one process without a launcher
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hvdgrab import GraBOptimizer, GraBSampler
from hvdgrab.examples.baseline import PlainOptimizer, PlainSampler, baseline
from hvdgrab.examples.common import World, arguments, limited, mean_loss, run, seed_everything, step_is_due
from hvdgrab.examples.data import WIKITEXT2, locate, read_words

BPTT = 35  # words of an example
WIDTH = 32  # of embedding and hidden state
UNKNOWN = "<unk>"


class LanguageModel(nn.Module):
    """An embedding, two LSTM layers, and a decoder over the vocabulary that shares the embedding's weights.

    Input (batch, 35) int64 word numbers, output (batch, 35, words) logits.  The hidden state starts at zero every time.
    With 14,143 words it has 483,615 parameters, and 936,191 with ``tied=False``.
    """

    def __init__(self, words: int, *, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(WIDTH, words)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        if tied:
            self.decoder.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Compute the logits of each next word."""
        hidden, _ = self.lstm(self.embedding(words))
        logits: torch.Tensor = self.decoder(hidden)
        return logits


def load(folder: Path) -> tuple[TensorDataset, TensorDataset, int]:
    """Load training and validation sequences (N, 35) int64 with their next words, and the size of the vocabulary.

    The vocabulary is that of the training text, ``<unk>`` included, which replaces other words of the validation text.
    """
    train, valid = read_words(folder / "test.txt"), read_words(folder / "valid.txt")
    number = {word: index for index, word in enumerate(dict.fromkeys([UNKNOWN, *train]))}
    return sequences(train, number), sequences(valid, number), len(number)


def sequences(words: list[str], number: dict[str, int]) -> TensorDataset:
    """Cut a text into sequences of 35 words, without the remainder at its end."""
    ids = torch.tensor([number.get(word, number[UNKNOWN]) for word in words])
    count = (len(ids) - 1) // BPTT
    return TensorDataset(ids[: count * BPTT].view(count, BPTT), ids[1 : count * BPTT + 1].view(count, BPTT))


def loss_of(model: nn.Module, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy a word, in nats."""
    return F.cross_entropy(model(words).flatten(0, 1), following.flatten())


def perplexity(model: nn.Module, valid: TensorDataset, world: World) -> float:
    """exp(mean cross entropy) over the validation text."""
    return math.exp(min(mean_loss("lstm.valid", loss_of, model, valid, world), 700.0))  # beyond, exp overflows


def main() -> None:
    """Train, and print one line an epoch."""
    parser = arguments(__doc__, epochs=40, batch_size=4, lr=5.0)
    parser.add_argument("--clip", type=float, default=0.0, help="largest norm of the averaged gradient (default: no limit)")
    args = parser.parse_args()
    world = World.start()
    seed = seed_everything(args)
    train, valid, words = load(locate(WIKITEXT2, world))
    dataset, valid = limited(train, args.limit), limited(valid, args.limit)
    model = LanguageModel(words).to(world.device)
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
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.1)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        started, total = time.perf_counter(), 0.0
        for unit, (sequence, following) in enumerate(loader):
            loss = loss_of(model, sequence.to(world.device), following.to(world.device))
            (loss / args.backward_passes).backward()
            if step_is_due(unit, len(loader), args.backward_passes):
                world.clip_and_step(optimizer, model, args.clip)
                optimizer.zero_grad()
            optimizer.log(loss=loss)
            total += float(loss.detach())
        optimizer.log(train_seconds=time.perf_counter() - started)
        scheduler.step()
        figures = {"valid_perplexity": perplexity(model, valid, world)}
        if args.full_loss:
            figures["full_loss"] = mean_loss("lstm.full", loss_of, model, dataset, world)
        optimizer.log(**figures)
        world.say(epoch, args.epochs, train_loss=world.mean("lstm.loss", total, len(loader)), **figures)
    optimizer.close()
    world.finished()


if __name__ == "__main__":
    run(main)
