"""``hvdgrab-bench``: measurements of the ordering, each a sub-command.

balance       the order engine: every backend against a loop of torch calls; with --study herding: random vectors
compress      every compressor on real gradients of the examples: time, bytes, errors, bound (a few minutes)
simulate      orders of a logistic regression on digits, in one process without MPI (a minute)
overhead      step time with ordering against plain Horovod, paired runs under mpirun
gather        collective calls of the communicators, flat and hierarchical: time, bytes on the wire
memory        memory that ordering adds to the training of models of several sizes (a minute)
convergence   loss and bound of an example under several orders and seeds, under mpirun
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hvdgrab.balance.backends import BACKENDS
from hvdgrab.bench import machine
from hvdgrab.bench.gather import OPERATIONS
from hvdgrab.bench.runs import EXAMPLES, PROGRAMS, SIMULATED, BenchError, Case, Site, Variant

if TYPE_CHECKING:
    from hvdgrab.bench.convergence import Curve

LOOKED_AT = 3
"""`simulate` shows one in so many epochs."""

Outcome = tuple[object, str, bool]
"""Result of a command: data for JSON, text for people, and whether something is wrong."""


def main(
    arguments: Sequence[str] | None = None, place: Callable[[Site], Site] = lambda site: site, program: str = "hvdgrab-bench"
) -> int:
    """Run the command line.

    Args:
        arguments: those of the process by default.
        place: moves the ranks to other hosts than this one.
        program: its name in the header.

    Returns:
        The exit code: 0 if nothing was wrong, 1 if a run failed or a ``wrong`` column is not 0, 2 for wrong usage.
    """
    args = _parser().parse_args(arguments)
    args.place = place
    facts = machine.header(program)
    print(machine.sentence(facts), file=sys.stderr if args.json else sys.stdout, flush=True)
    try:
        result, text, code = args.measure(args)
    except BenchError as error:
        print(f"hvdgrab-bench: {error}", file=sys.stderr)
        return 1
    print(json.dumps({**facts, "results": result}, indent=1) if args.json else text)
    return int(code)


def _parser() -> argparse.ArgumentParser:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="hvdgrab-bench", description=__doc__, formatter_class=layout)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    engine = _command(commands, "balance", run_balance, "the order engine's backends against a loop of torch calls")
    cases = "MxD (vectors x floats) or WxPxD (an epoch of ranks x pairs x floats), separated by commas (default: four or five)"
    engine.add_argument("--case", type=_cases, help=cases)
    engine.add_argument("--backend", type=_listed(BACKENDS), help="separated by commas (default: by case)")
    engine.add_argument("--repeats", type=int, default=5, help="repetitions, in turns; medians are shown (default: %(default)s)")
    engine.add_argument("--study", choices=["herding"], help="measure bounds of the CD-GraB paper's random vectors instead")
    engine.add_argument("--vectors", type=int, default=10**6, help="of the study (default: the paper's %(default)s)")
    engine.add_argument("--ranks", type=_numbers, default=[5, 10, 20, 50, 100], help="of the study (default: 5,10,20,50,100)")
    engine.add_argument("--seed", type=int, default=0, help="of the study (default: %(default)s)")

    payloads = _command(commands, "compress", run_compress, "compressors on real gradients of the examples")
    payloads.add_argument("--examples", type=_listed(EXAMPLES), default=list(EXAMPLES), help=f"(default: {','.join(EXAMPLES)})")
    payloads.add_argument("--ranks", type=int, default=4, help="simulated ranks (default: %(default)s)")
    payloads.add_argument("--units", type=int, default=64, help="of each rank (default: %(default)s)")
    payloads.add_argument("--starts", type=int, default=2, help="random orders to start from, averaged (default: %(default)s)")
    payloads.add_argument("--floats", type=int, default=10**7, help="of the throughput rows; 0: none (default: %(default)s)")
    payloads.add_argument("--plot", type=Path, help="also draw bound against bytes to this .png or .svg")

    study = _command(commands, "simulate", run_simulate, "orders in one process, without MPI")
    compared = ["rr", "cd-grab"]
    study.add_argument("--orders", type=_listed(SIMULATED), default=compared, help="(default: rr,cd-grab)")
    study.add_argument("--seeds", type=_numbers, default=[0, 1], help="separated by commas (default: 0,1)")
    study.add_argument("--ranks", type=int, default=4, help="simulated ranks (default: %(default)s)")
    study.add_argument("--epochs", type=int, default=30, help="(default: %(default)s)")
    study.add_argument("--lr", type=float, default=0.1, help="(default: %(default)s)")

    cost = _command(commands, "overhead", run_overhead, "step time against plain Horovod")
    cost.add_argument("--example", choices=PROGRAMS, default="digits", help="(default: %(default)s)")
    cost.add_argument("--order", type=_variant, default="cd-grab", help="ORDER or ORDER:COMPRESSION (default: %(default)s)")
    cost.add_argument("--pairs", type=int, default=5, help="pairs of runs (default: %(default)s)")
    cost.add_argument("--epochs", type=int, default=3, help="timed epochs, after one to warm up (default: %(default)s)")
    _add_site(cost)

    calls = _command(commands, "gather", run_gather, "collective calls: time and bytes on the wire")
    calls.add_argument("--operations", type=_listed(OPERATIONS), default=list(OPERATIONS[:3]), help=",".join(OPERATIONS))
    calls.add_argument("--sizes", type=_numbers, default=[1024, 4096, 65536, 10**6], help="bytes a rank (default: 1 KiB to 1 MB)")
    calls.add_argument("--calls", type=int, default=20, help="timed of each case (default: %(default)s)")
    _add_launch(calls)

    room = _command(commands, "memory", run_memory, "memory that ordering adds to a training")
    room.add_argument("--sizes", type=_numbers, default=[1, 10, 100], help="millions of parameters (default: 1,10,100)")
    room.add_argument("--orders", type=_variants, default="cd-grab:sketch,cd-grab:none", help="(default: %(default)s)")

    curves = _command(commands, "convergence", run_convergence, "loss and bound under several orders")
    curves.add_argument("example", metavar="NAME", choices=EXAMPLES, help=", ".join(EXAMPLES))
    orders = ["reshuffle", "rr", "id-grab", "cd-grab"]
    listed = f"ORDER or ORDER:COMPRESSION, separated by commas (default: {','.join(orders)})"
    curves.add_argument("--orders", type=_variants, default=",".join(orders), help=listed)
    curves.add_argument("--seeds", type=_numbers, default=[0, 1, 2], help="(default: 0,1,2)")
    curves.add_argument("--epochs", type=int, help="(default: the example's own)")
    curves.add_argument("--one-process", action="store_true", help="simulate the ranks in this process: no MPI, one core")
    curves.add_argument("--plot", type=Path, help="also draw the curves to this .png or .svg")
    _add_site(curves)
    return parser


def _command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    measure: Callable[[argparse.Namespace], object],
    text: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=text, description=text)
    command.add_argument("--json", action="store_true", help="one JSON document on stdout, everything else on stderr")
    command.set_defaults(measure=measure)
    return command


def _add_site(command: argparse.ArgumentParser) -> None:
    _add_launch(command)
    command.add_argument("--limit", type=int, help="use only so many training examples")
    command.add_argument("--batch-size", type=int, help="(default: the example's own)")


def _add_launch(command: argparse.ArgumentParser) -> None:
    command.add_argument("--ranks", type=int, default=2, help="(default: %(default)s)")
    command.add_argument("--oversubscribe", action="store_true", help="allow more ranks than cores")
    command.add_argument("--allow-run-as-root", action="store_true", help="needed by mpirun if you are root")
    command.add_argument("--timeout", type=float, default=3600.0, help="seconds a run may take (default: %(default)s)")


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers like 0,1,2") from None


def _variant(text: str) -> Variant:
    try:
        return Variant.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no order, and no order:compression such as cd-grab:topk") from None


def _variants(text: str) -> list[Variant]:
    return [_variant(name) for name in text.split(",")]


def _cases(text: str) -> list[str]:
    try:
        return [str(Case.parse(name)) for name in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _listed(valid: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in valid]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; valid are {', '.join(valid)}")
        return names

    return parse


# Each command imports its benchmark, so that ``--help`` loads neither torch nor scikit-learn.


def _site(args: argparse.Namespace) -> Site:
    site = Site(args.ranks, oversubscribe=args.oversubscribe, allow_root=args.allow_run_as_root, timeout=args.timeout)
    placed: Site = args.place(site)
    return placed


def _options(args: argparse.Namespace, *names: str) -> list[str]:
    """Arguments of the example, for the options that were given."""
    given = [(name, getattr(args, name)) for name in names]
    return [text for name, value in given if value is not None for text in (f"--{name.replace('_', '-')}", str(value))]


def run_balance(args: argparse.Namespace) -> Outcome:
    """Measure the order engine, or do the study of random vectors."""
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
    """Measure compressors on real gradients, and their throughput on long vectors."""
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
    """Compare orders in one process."""
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
    """Measure step times in paired runs."""
    from hvdgrab.bench import overhead

    options = _options(args, "limit", "batch_size")
    rows = overhead.overhead(
        _site(args), args.example, pairs=args.pairs, epochs=args.epochs, options=options, variant=args.order,
        tell=lambda row: print(f"# pair {row['pair']}: ratio {row['ratio']:.3f}", file=sys.stderr, flush=True),
    )  # fmt: skip
    rows.append(overhead.summary(rows))
    return rows, machine.table(rows), rows[-1]["wrong"] != 0


def run_memory(args: argparse.Namespace) -> Outcome:
    """Measure the memory that ordering adds to a training."""
    from hvdgrab.bench import memory

    rows = memory.memory(args.sizes, args.orders, tell=_told)
    return rows, machine.table(rows), any(row["wrong"] != 0 for row in rows)


def run_gather(args: argparse.Namespace) -> Outcome:
    """Measure collective calls."""
    from hvdgrab.bench import gather

    result = gather.gather(_site(args), args.operations, args.sizes, args.calls)
    header = "".join(f"# {result[name]}\n" for name in ("topology", "network", "mpi"))
    return result, header + machine.table(result["rows"]), any(row["wrong"] != 0 for row in result["rows"])


def run_convergence(args: argparse.Namespace) -> Outcome:
    """Measure curves of an example under several orders."""
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


if __name__ == "__main__":
    sys.exit(main())
