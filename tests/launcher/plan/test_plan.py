from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import PlanError
from launcher.jobdir.plan import Plan, PlanFileError
from launcher.plan.planning import resolve_workdir
from tests.launcher.helpers import JOB_ID, mpirun, plan

GOLDEN = Path(__file__).with_name("golden_plan.json")
GOLDEN_SPEC = """\
command: [python, train.py, "$HOME `id`", ""]
workdir: src
env: {LEVEL: 010, HVDGRAB_DATA: /data}
secrets: [API_TOKEN]
resources: {ranks: 6, oversubscribe: true, allow_root: true}
backend: {extra_args: [--mca, btl_tcp_if_include, "eth0;id"]}
grab: {order: cd-grab, seed: 3}
"""


def refusal(text: str, **facts: Any) -> str:
    with pytest.raises(PlanError) as caught:
        plan(text, **facts)
    return str(caught.value)


def test_golden_plan() -> None:
    facts = {
        "root": True,
        "package_root": "/src",
        "pythonpath": "/mine:/src",
        "path": "/usr/bin",
        "environment": ("API_TOKEN", "HOME", "OMPI_MCA_btl", "PATH", "SLURM_JOB_ID"),
    }
    assert json.loads(plan(GOLDEN_SPEC, **facts).to_json()) == json.loads(GOLDEN.read_text())


def test_a_plan_of_the_version_before_is_refused_with_what_to_do(tmp_path: Path) -> None:
    flat = {"version": 2, "job_id": JOB_ID, "job_dir": str(tmp_path), "name": "demo", "ranks": 2, "backend": "mpirun"}
    (tmp_path / "plan.json").write_text(json.dumps(flat))
    with pytest.raises(PlanFileError) as caught:
        Plan.read(tmp_path / "plan.json")
    assert "earlier version of hvdgrab-launch" in str(caught.value)
    assert f"submit {tmp_path}/spec.yaml as a new job" in str(caught.value)
    own = tmp_path / "attempts" / "0003" / "plan.json"
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps(flat))
    with pytest.raises(PlanFileError, match=f"submit {tmp_path}/spec.yaml as a new job"):
        Plan.read(own)


def test_a_plan_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({**json.loads(plan(GOLDEN_SPEC).to_json()), "version": 9}))
    with pytest.raises(PlanFileError, match="its format is number 9, not 3"):
        Plan.read(tmp_path / "plan.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"version": 3}', "\xe9"])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(PlanFileError, match=r"plan.json is not a plan of this version of hvdgrab-launch"):
        Plan.read(tmp_path / "plan.json")


def test_the_same_input_gives_the_same_plan_which_survives_json() -> None:
    first = plan(GOLDEN_SPEC, root=True)
    assert first == plan(GOLDEN_SPEC, root=True)
    assert Plan.from_json(first.to_json()) == first
    with pytest.raises(FrozenInstanceError):
        first.argv = ()  # type: ignore[misc]


@pytest.mark.parametrize(("cores", "ranks"), [(1, 2), (2, 4), (4, 4), (64, 4)])
def test_automatic_ranks(cores: int, ranks: int) -> None:
    assert plan("command: x\nresources: {oversubscribe: true}", cores=cores).placement.ranks == ranks


@pytest.mark.parametrize(("cores", "ranks", "threads"), [(8, 2, 4), (7, 2, 3), (2, 4, 1), (64, 1, 64)])
def test_automatic_threads(cores: int, ranks: int, threads: int) -> None:
    made = plan(f"command: x\nresources: {{ranks: {ranks}, oversubscribe: true}}", cores=cores)
    assert (made.placement.threads_per_rank, made.launch.environment["OMP_NUM_THREADS"]) == (threads, str(threads))


def test_more_ranks_than_cores_need_consent() -> None:
    text = refusal("command: x\nresources: {ranks: 3}", cores=2)
    assert "3 ranks on 2 cores" in text
    assert "`resources.oversubscribe: true`" in text
    assert "4 ranks on 2 cores" in refusal("command: x", cores=2)
    assert plan("command: x\nresources: {ranks: 3, oversubscribe: true}", cores=2).placement.oversubscribed
    assert not plan("command: x\nresources: {ranks: 2, oversubscribe: true}", cores=2).placement.oversubscribed


@pytest.mark.parametrize("kind", ["mpirun", "horovodrun"])
def test_root_needs_consent(kind: str) -> None:
    text = f"command: x\nbackend: {{kind: {kind}}}"
    assert f"{kind} is not started as root without consent: write `resources.allow_root: true`" in refusal(text, root=True)
    assert not plan(text).launch.allow_root
    assert plan(text + "\nresources: {allow_root: true}", root=True).launch.allow_root


def test_what_every_rank_would_refuse_is_refused_before_the_start() -> None:
    text = "command: python t.py\nresources: {ranks: 2}\ngrab: "
    assert "'grab' orders a single rank, but there are 2" in refusal(text + "{order: grab}")
    assert "there is no rank 2, the ranks are 0 … 1" in refusal(text + "{designated_rank: 2}")


def test_the_home_of_an_unknown_user_is_left_for_the_check_of_the_directory() -> None:
    assert resolve_workdir("~nobody-of-that-name/y", "/home/user") == "/home/user/~nobody-of-that-name/y"


def test_one_local_rank_needs_no_consent_as_root() -> None:
    assert plan("command: x\nresources: {ranks: 1}", root=True).launch.backend == "local"


def test_the_users_words_are_on_no_command_line() -> None:
    made = plan('command: [python, "marker-in-argument"]\nenv: {A: marker-in-env}')
    assert not any("marker" in word for word in made.argv)
    assert made.argv[-5:] == ("/opt/py/bin/python", "-m", "launcher.attempt.rank.wrapper", f"/jobs/{JOB_ID}", "1")


@pytest.mark.parametrize("word", ["python", "python3"])
def test_python_means_the_launchers_interpreter(word: str) -> None:
    assert plan(f"command: {word} x").job.command == ("/opt/py/bin/python", "x")
    assert plan("command: ./python x").job.command == ("./python", "x")


def test_only_the_settings_that_were_given_reach_the_ranks() -> None:
    assert "HVDGRAB_GRAB" not in plan().launch.environment
    assert json.loads(plan("command: x\ngrab: {seed: 0}").launch.environment["HVDGRAB_GRAB"]) == {"seed": 0}


def test_workdir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert resolve_workdir(None, "/cwd") == "/cwd"
    assert resolve_workdir("a", "/cwd") == "/cwd/a"
    assert resolve_workdir("/a", "/cwd") == "/a"
    assert resolve_workdir("~/a", "/cwd") == "/home/me/a"


def test_mpirun_beside_the_interpreter_is_added_to_the_search_path() -> None:
    assert "PATH" not in plan().launch.environment
    assert plan(path="/usr/bin").launch.environment["PATH"] == "/usr/bin:/opt/mpi/bin"


def test_another_mpi_changes_the_backend() -> None:
    made = plan(mpirun=mpirun("openmpi", 5, 0, 8))
    assert (made.launch.backend, made.launch.mpi_version) == ("mpirun", (5, 0, 8))
