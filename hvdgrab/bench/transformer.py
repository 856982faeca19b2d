"""A transformer of ten million parameters on WikiText-2, for `hvdgrab-bench overhead`: many parameters, a step of a second.

    mpirun -np 2 python -m hvdgrab.bench.transformer --limit 64
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.utils.data import DataLoader

from hvdgrab import GraBOptimizer, GraBSampler
from hvdgrab.examples.baseline import PlainOptimizer, PlainSampler, baseline
from hvdgrab.examples.common import World, arguments, limited, run, seed_everything
from hvdgrab.examples.data import WIKITEXT2, locate
from hvdgrab.examples.lstm_wikitext2 import BPTT, load, loss_of

WIDTH, HEADS, LAYERS = 256, 4, 8


class Transformer(nn.Module):
    """An embedding with positions, eight encoder layers, and a decoder with the embedding's weights: 9,962,303 parameters.

    Input (batch, 35) int64 word numbers, output (batch, 35, words) logits of each next word.
    """

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, WIDTH)
        self.places = nn.Parameter(torch.zeros(BPTT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, norm=nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.decoder = nn.Linear(WIDTH, words)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.decoder.weight = self.embedding.weight
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(BPTT), persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Compute the logits of each next word from the words before it."""
        hidden = self.layers(self.embedding(words) + self.places, mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.decoder(hidden)
        return logits


def main() -> None:
    """Train, and print one line an epoch."""
    args = arguments(__doc__, epochs=3, batch_size=4, lr=0.01).parse_args()
    world = World.start()
    seed = seed_everything(args)
    train, _, words = load(locate(WIKITEXT2, world))
    dataset = limited(train, args.limit)
    model = Transformer(words).to(world.device)
    inner = world.distribute(torch.optim.SGD(model.parameters(), lr=args.lr), model)

    sampler: GraBSampler | PlainSampler
    optimizer: GraBOptimizer | PlainOptimizer
    if args.no_grab:
        sampler, loader, optimizer = baseline(dataset, args, inner, world, seed)
    else:
        sampler = GraBSampler(dataset, batch_size=args.batch_size, seed=args.seed, order=args.order)
        loader = DataLoader(dataset, batch_sampler=sampler, num_workers=args.workers)
        optimizer = GraBOptimizer(inner, sampler, model, total_epochs=args.epochs)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        started, total = time.perf_counter(), 0.0
        for sequence, following in loader:
            loss = loss_of(model, sequence.to(world.device), following.to(world.device))
            torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            optimizer.log(loss=loss)
            total += float(loss.detach())
        optimizer.log(train_seconds=time.perf_counter() - started)
        world.say(epoch, args.epochs, train_loss=world.mean("transformer.loss", total, len(loader)))
    optimizer.close()


if __name__ == "__main__":
    run(main)
