from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.errors import PlanError
from launcher.jobdir.paths import JobPaths
from launcher.plan import preflight
from launcher.plan.planning import make_plan
from tests.launcher.helpers import host, spec

PYTHON = "/opt/py/bin/python"


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of programs and one to work in."""
    for name in ("tool", "ssh", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def fault(text: str, folder: Path, path: str | None = None, **inherited: str) -> str:
    job = spec(text)
    facts = host(cwd=str(folder), python=str(folder / "tool"))
    made = make_plan(job, facts, JobPaths(folder / "demo-20250102-030405-00ff"))
    try:
        preflight.check(made, {"PATH": str(folder) if path is None else path, **inherited}, job)
    except PlanError as error:
        return str(error)
    return ""


def test_a_job_that_can_run_passes(programs: Path) -> None:
    (programs / "train.py").touch()
    assert fault("command: python train.py\nslurm: {nodes: 1, ranks_per_node: 1}", programs) == ""
    assert fault("command: tool\nresources: {hosts: [elsewhere:1]}", programs) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("command: x\nworkdir: none", "job.yaml:2: workdir: "),
        ("command: absent", "job.yaml:1: command: 'absent' is not an executable program on PATH"),
        ("command: python train.py", "job.yaml:1: command: there is no file 'train.py' in "),
        ("name: a\ncommand: python -u -W ignore train.py --x", "job.yaml:2: command: there is no file 'train.py'"),
        ("command: tool\nsecrets: [TOKEN]", "job.yaml:2: secrets: TOKEN is not set in this environment; `export TOKEN=...`"),
        ("command: tool\nresources:\n  hosts: [b:1]\n  ssh: {identity: none}", "job.yaml:4: resources.ssh.identity: none cannot"),
    ],
)
def test_what_is_missing_is_named_with_file_and_line(text: str, message: str, programs: Path) -> None:
    assert message in fault(text, programs)


@pytest.mark.parametrize("command", ["python -m mod", "python -c 'x y'", "python -um mod", "tool train.py", "python", "python -"])
def test_modules_code_and_other_programs_have_no_script(command: str, programs: Path) -> None:
    assert fault(f"command: {command}", programs) == ""


def test_programs_that_reach_other_hosts(programs: Path) -> None:
    (programs / "bin").mkdir()
    (programs / "bin" / "tool").symlink_to(programs / "tool")
    bin_only = str(programs / "bin")
    assert "there is no ssh on PATH by which b could" in fault("command: tool\nresources: {hosts: [b:1]}", programs, bin_only)
    assert fault("command: tool\nresources: {hosts: [node1:1, localhost:1]}", programs, bin_only) == ""
    slurm = "command: tool\nslurm: {nodes: 1, ranks_per_node: 1}"
    assert "backend.kind: there is no sbatch on PATH: this is not a host of a SLURM cluster" in fault(slurm, programs, bin_only)


@pytest.mark.parametrize(
    "text",
    [
        "command: [tool, my-hunter2-x]",
        "command: tool\nenv: {A: hunter2}",
        "command: tool\nnetwork: {horovod: {A: hunter2}}",
        "command: tool\nnetwork: {interface: 10.0.0.0/hunter2}",
        "command: tool\nbackend: {extra_args: [hunter2]}",
        "command: tool\nresources: {hosts: [b:1], ssh: {user: hunter2}}",
        "command: tool\nslurm: {nodes: 1, ranks_per_node: 1, prologue: [export X=hunter2]}",
        "command: tool\ngrab: {layers: [hunter2]}",
        "command: tool\nname: hunter2",
        "command: tool\nworkdir: hunter2",
    ],
)
def test_a_secret_that_stands_anywhere_in_the_plan_is_refused(text: str, programs: Path) -> None:
    (programs / "hunter2").mkdir()
    if "name: hunter2" in text:
        job = spec(text + "\nsecrets: [TOKEN]")
        made = make_plan(job, host(cwd=str(programs)), JobPaths(programs / "hunter2-20250102-030405-00ff"))
        with pytest.raises(PlanError, match="TOKEN stands in the job directory's name"):
            preflight.check(made, {"PATH": str(programs), "TOKEN": "hunter2"}, job)
        return
    found = fault(text + "\nsecrets: [TOKEN]", programs, TOKEN="hunter2")
    assert "secrets: the value of TOKEN stands in" in found
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("interface: none0", "job.yaml:2: network.interface: this host has no interface none0; it has "),
        ("interface: [lo, none0]", "this host has no interface none0"),
        ("ucx_devices: none0:1", "network.ucx_devices: this host has no device none0:1; it has all, "),
        ("interface: lo", ""),
        ("interface: 10.0.0.0/8", ""),
        ("ucx_devices: [lo, all]", ""),
    ],
)
def test_wires_that_this_host_lacks(network: str, message: str, programs: Path) -> None:
    found = fault(f"command: tool\nnetwork: {{{network}}}", programs)
    assert message in found
    assert bool(message) == bool(found)


def test_too_few_open_files_for_the_ranks(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "command: tool\nresources: {ranks: 9, oversubscribe: true}"
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 1024))
    assert "resources.ranks: 9 ranks on this host need about 69 open files, and 64 are allowed; `ulimit -n 69`" in fault(
        text, programs
    )
    monkeypatch.setattr(resource, "getrlimit", lambda which: (64, 64))
    assert "the hard limit is 64: use fewer ranks" in fault(text, programs)
    assert fault(text.replace("9", "8"), programs) == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every directory")
def test_a_directory_that_may_not_be_entered(programs: Path) -> None:
    (programs / "closed").mkdir(mode=0o600)
    assert "cannot be entered: no permission" in fault("command: tool\nworkdir: closed", programs)


def test_a_job_directory_that_cannot_be_made(programs: Path) -> None:
    (programs / "file").touch()
    job = spec("command: tool")
    made = make_plan(job, host(cwd=str(programs)), JobPaths(programs / "file" / "deep" / "demo-20250102-030405-00ff"))
    with pytest.raises(PlanError, match=r"job\.yaml: the job directory .* cannot be made: .*/file is not a directory"):
        preflight.check(made, {"PATH": str(programs)}, job)
    assert not (programs / "file").is_dir()


def test_faults_without_a_spec_still_name_the_setting(programs: Path) -> None:
    made = make_plan(spec("command: absent"), host(cwd=str(programs)), JobPaths(programs / "demo-20250102-030405-00ff"))
    with pytest.raises(PlanError, match="^command: 'absent' is not"):
        preflight.check(made, {"PATH": str(programs)})
