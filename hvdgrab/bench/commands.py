"""What each sub-command of ``hvdgrab-bench`` measures: from its arguments to (result for JSON, text, whether something is wrong).

The benchmarks are imported by their commands: they load torch and scikit-learn, which ``--help`` does without.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from hvdgrab.bench import machine
from hvdgrab.bench.runs import Site, Variant

if TYPE_CHECKING:
    from hvdgrab.bench.convergence import Curve

LOOKED_AT = 3
"""`simulate` shows every third epoch."""

Outcome = tuple[object, str, bool]


def _site(args: argparse.Namespace) -> Site:
    site = Site(args.ranks, oversubscribe=args.oversubscribe, allow_root=args.allow_run_as_root, timeout=args.timeout)
    placed: Site = args.place(site)
    return placed


def _options(args: argparse.Namespace, *names: str) -> list[str]:
    """The example's arguments that were given."""
    given = [(name, getattr(args, name)) for name in names]
    return [text for name, value in given if value is not None for text in (f"--{name.replace('_', '-')}", str(value))]


def run_balance(args: argparse.Namespace) -> Outcome:
    """The order engine, or the study of random vectors."""
    if args.study == "herding":
        from hvdgrab.bench import herding

        rows = herding.study(args.vectors, args.ranks, seed=args.seed, tell=_told)
        return rows, machine.table(rows), False
    from hvdgrab.bench import balance

    wanted = [(case, tuple(args.backend or balance.backends_of(case))) for case in args.case or balance.default_cases()]
    rows = []
    for case, backends in wanted:
        rows += balance.measure(case, backends, args.repeats, tell=_told)
    return rows, machine.table(rows), any(row["wrong"] != 0 for row in rows)


def run_compress(args: argparse.Namespace) -> Outcome:
    """Compressors on real gradients, and their throughput on long vectors."""
    from hvdgrab.bench import compress, gradients

    rows: list[dict[str, object]] = []
    for example in args.examples:
        with gradients.collect(example, args.ranks, args.units) as stored:
            rows += compress.rows(stored, starts=args.starts, tell=_told)
    speed = compress.throughput(args.floats) if args.floats else []
    if args.plot is not None:
        compress.plot(rows, args.plot)
    wrong = any(row["wrong"] != 0 for row in [*rows, *speed])
    return {"rows": rows, "throughput": speed}, "\n\n".join(map(machine.table, filter(None, (rows, speed)))), wrong


def _told(row: dict[str, object]) -> None:
    print("# " + ", ".join(f"{name} {machine.cell(value)}" for name, value in row.items()), file=sys.stderr, flush=True)


def run_simulate(args: argparse.Namespace) -> Outcome:
    """Orders in one process."""
    from hvdgrab.bench import simulate

    rows: list[dict[str, object]] = []
    for seed in args.seeds:
        settings = {"ranks": args.ranks, "epochs": args.epochs, "lr": args.lr}
        studies = {order: simulate.simulate(order, seed, **settings) for order in args.orders}
        for epoch in sorted({*range(1, args.epochs + 1, LOOKED_AT), args.epochs}):
            losses: dict[str, object] = {order: study.full_loss[epoch - 1] for order, study in studies.items()}
            bounds: dict[str, object] = {f"{order} bound": study.bound_vs_random[epoch - 1] for order, study in studies.items()}
            rows.append({"seed": seed, "epoch": epoch, **losses, **bounds})
    return rows, machine.table(rows), False


def run_overhead(args: argparse.Namespace) -> Outcome:
    """Step times in paired runs."""
    from hvdgrab.bench import overhead

    options = _options(args, "limit", "batch_size")
    rows = overhead.overhead(
        _site(args), args.example, pairs=args.pairs, epochs=args.epochs, options=options, variant=args.order,
        tell=lambda row: print(f"# pair {row['pair']}: ratio {row['ratio']:.3f}", file=sys.stderr, flush=True),
    )  # fmt: skip
    rows.append(overhead.summary(rows))
    return rows, machine.table(rows), rows[-1]["wrong"] != 0


def run_memory(args: argparse.Namespace) -> Outcome:
    """What ordering adds to a training's memory."""
    from hvdgrab.bench import memory

    rows = memory.memory(args.sizes, args.orders, tell=_told)
    return rows, machine.table(rows), any(row["wrong"] != 0 for row in rows)


def run_gather(args: argparse.Namespace) -> Outcome:
    """Collective calls over a network."""
    from hvdgrab.bench import gather

    result = gather.gather(_site(args), args.operations, args.sizes, args.calls)
    header = "".join(f"# {result[name]}\n" for name in ("topology", "network", "mpi"))
    return result, header + machine.table(result["rows"]), any(row["wrong"] != 0 for row in result["rows"])


def run_convergence(args: argparse.Namespace) -> Outcome:
    """Curves of an example under several orders."""
    from hvdgrab.bench import convergence

    def train(variant: Variant, seed: int) -> Curve:
        if not args.one_process:
            options = _options(args, "epochs", "limit", "batch_size")
            return convergence.measure(_site(args), args.example, variant, seed, options)
        from hvdgrab.bench.one_process import Simulation

        settings = {"ranks": args.ranks, "limit": args.limit, "batch_size": args.batch_size}
        return Simulation(args.example, variant, seed, **settings).run(args.epochs)

    curves = convergence.convergence(
        train, args.orders, args.seeds,
        tell=lambda curve: print(f"# {curve.order}, seed {curve.seed}: {curve.seconds:.0f} s", file=sys.stderr, flush=True),
    )  # fmt: skip
    rows = convergence.rows(curves)
    if args.plot is not None:
        convergence.plot(curves, args.plot, args.example)
    return {"rows": rows, "curves": convergence.to_json(curves)}, machine.table(rows), False
