"""``hvdgrab-bench``: measurements of the ordering, each a sub-command.

simulate      orders on digits with a logistic regression, one process, no MPI: a minute
overhead      step time with ordering against plain Horovod, paired runs under mpirun
convergence   loss and bound of an example under several orders and seeds, under mpirun
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hvdgrab.bench import convergence, machine, overhead, simulate
from hvdgrab.bench.runs import EXAMPLES, BenchError, Site
from hvdgrab.config import ORDERS

LOOKED_AT = 3
"""`simulate` shows every third epoch."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 done and nothing wrong, 1 a run failed or a ``wrong`` column is not 0, 2 wrong usage."""
    args = _parser().parse_args(arguments)
    facts = machine.header()
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
    study = _command(commands, "simulate", _simulate, "orders in one process, without MPI")
    compared = ["rr", "cd-grab"]
    study.add_argument("--orders", type=_listed(simulate.SIMULATED), default=compared, help="(default: rr,cd-grab)")
    study.add_argument("--seeds", type=_numbers, default=[0, 1], help="separated by commas (default: 0,1)")
    study.add_argument("--ranks", type=int, default=4, help="simulated ranks (default: %(default)s)")
    study.add_argument("--epochs", type=int, default=30, help="(default: %(default)s)")
    study.add_argument("--lr", type=float, default=0.1, help="(default: %(default)s)")

    cost = _command(commands, "overhead", _overhead, "step time against plain Horovod")
    cost.add_argument("--example", choices=EXAMPLES, default="digits", help="(default: %(default)s)")
    cost.add_argument("--order", choices=ORDERS, default="cd-grab", help="(default: %(default)s)")
    cost.add_argument("--pairs", type=int, default=5, help="pairs of runs (default: %(default)s)")
    cost.add_argument("--epochs", type=int, default=3, help="timed epochs, after one to warm up (default: %(default)s)")
    _add_site(cost)

    curves = _command(commands, "convergence", _convergence, "loss and bound under several orders")
    curves.add_argument("example", metavar="NAME", choices=EXAMPLES, help=", ".join(EXAMPLES))
    orders = ["reshuffle", "rr", "id-grab", "cd-grab"]
    curves.add_argument("--orders", type=_listed(ORDERS), default=orders, help=f"(default: {','.join(orders)})")
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
    command.add_argument("--ranks", type=int, default=2, help="(default: %(default)s)")
    command.add_argument("--limit", type=int, help="use only so many training examples")
    command.add_argument("--batch-size", type=int, help="(default: the example's own)")
    command.add_argument("--oversubscribe", action="store_true", help="allow more ranks than cores")
    command.add_argument("--allow-run-as-root", action="store_true", help="mpirun wants to be told")
    command.add_argument("--timeout", type=float, default=3600.0, help="seconds a run may take (default: %(default)s)")


def _site(args: argparse.Namespace) -> Site:
    return Site(args.ranks, oversubscribe=args.oversubscribe, allow_root=args.allow_run_as_root, timeout=args.timeout)


def _options(args: argparse.Namespace, *names: str) -> list[str]:
    """The example's arguments that were given."""
    given = [(name, getattr(args, name)) for name in names]
    return [text for name, value in given if value is not None for text in (f"--{name.replace('_', '-')}", str(value))]


def _simulate(args: argparse.Namespace) -> tuple[object, str, bool]:
    rows: list[dict[str, object]] = []
    for seed in args.seeds:
        settings = {"ranks": args.ranks, "epochs": args.epochs, "lr": args.lr}
        studies = {order: simulate.simulate(order, seed, **settings) for order in args.orders}
        for epoch in sorted({*range(1, args.epochs + 1, LOOKED_AT), args.epochs}):
            losses: dict[str, object] = {order: study.full_loss[epoch - 1] for order, study in studies.items()}
            bounds: dict[str, object] = {f"{order} bound": study.bound_vs_random[epoch - 1] for order, study in studies.items()}
            rows.append({"seed": seed, "epoch": epoch, **losses, **bounds})
    return rows, machine.table(rows), False


def _overhead(args: argparse.Namespace) -> tuple[object, str, bool]:
    options = _options(args, "limit", "batch_size")
    rows = overhead.overhead(
        _site(args), args.example, pairs=args.pairs, epochs=args.epochs, options=options, order=args.order,
        tell=lambda row: print(f"# pair {row['pair']}: ratio {row['ratio']:.3f}", file=sys.stderr, flush=True),
    )  # fmt: skip
    rows.append(overhead.summary(rows))
    return rows, machine.table(rows), rows[-1]["wrong"] != 0


def _convergence(args: argparse.Namespace) -> tuple[object, str, bool]:
    def train(order: str, seed: int) -> convergence.Curve:
        if not args.one_process:
            return convergence.measure(_site(args), args.example, order, seed, _options(args, "epochs", "limit", "batch_size"))
        from hvdgrab.bench.one_process import Simulation  # loads torch, which no other command needs

        settings = {"ranks": args.ranks, "limit": args.limit, "batch_size": args.batch_size}
        return Simulation(args.example, order, seed, **settings).run(args.epochs)

    curves = convergence.convergence(
        train, args.orders, args.seeds,
        tell=lambda curve: print(f"# {curve.order}, seed {curve.seed}: {curve.seconds:.0f} s", file=sys.stderr, flush=True),
    )  # fmt: skip
    rows = convergence.rows(curves)
    if args.plot is not None:
        convergence.plot(curves, args.plot, args.example)
    return {"rows": rows, "curves": convergence.to_json(curves)}, machine.table(rows), False


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers like 0,1,2") from None


def _listed(valid: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in valid]:
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; valid are {', '.join(valid)}")
        return names

    return parse


if __name__ == "__main__":
    sys.exit(main())
