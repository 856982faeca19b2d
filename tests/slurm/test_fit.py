from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.cli.planned import prepared_jobs
from launcher.errors import PlanError
from launcher.host.program import Answer
from launcher.slurm import check
from launcher.slurm.check import (
    SINFO_HEADER,
    Examined,
    Site,
    asked,
    findings,
    names_in,
    parse_partitions,
    refused,
    reservations_in,
    said_in_trial,
)
from tests.real import ROOT
from tests.slurm.cluster import Cluster
from tests.slurm.driver import recorded
from tests.slurm.test_pure import plan

TABLE = f"""{SINFO_HEADER}
gpu|up|1-00:00:00|3|idle|64|256000|gpu:a100:4|a100,ib|g[1-3]
gpu|up|1-00:00:00|1|drained|64|256000|gpu:a100:4|a100|g4
small|up|30:00|2|idle|8|16000|(null)|(null)|s[1-2]
night|inact|infinite|2|idle|8|16000|(null)|(null)|s[1-2]
"""
SITE = Site(None, {"AccountingStorageEnforce": "associations,qos"}, parse_partitions(TABLE), "small",
            accounts=("physics",), qos=("normal", "long"), reservations=("school",))  # fmt: skip


def found(slurm: str, resources: str = "ranks: 2", site: Site = SITE) -> list[tuple[str, bool]]:
    text = f"resources: {{{resources}}}\nslurm: {{{slurm}}}"
    return [(finding.path, finding.certain) for finding in findings(plan(text), site)]


@pytest.mark.parametrize(
    ("slurm", "resources", "wanted"),
    [
        ("nodes: 2", "ranks: 2", []),
        ("partition: gpus", "ranks: 2", [("slurm.partition", True)]),
        ("partition: 'gpu,small', constraint: a100", "ranks: 2", []),
        ("partition: 'small,gpu', nodes: 5", "ranks: 5", [("slurm.nodes", True)]),
        ("partition: gpu, nodes: 4", "ranks: 4", [("slurm.nodes", False)]),
        ("nodes: 2", "ranks: 40", [("resources.ranks", True)]),
        ("mpi: auto", "ranks: 17", [("resources.ranks", True)]),
        ("extra: ['--overcommit']", "ranks: 17", []),
        ("partition: night", "ranks: 2", [("slurm.partition", False)]),
        ("partition: gpu, constraint: '[a100*2&ib|v100]'", "ranks: 2", [("slurm.constraint", True)]),
        ("partition: gpu, gpus_per_node: 8", "ranks: 2", [("slurm.gpus_per_node", True)]),
        ("partition: gpu", "ranks: 8, gpus_per_rank: 1", [("resources.gpus_per_rank", True)]),
        ("memory: 1TiB", "ranks: 2", [("slurm.memory", True)]),
        ("mpi: auto", "ranks: 2, time_limit: 29m", [("resources.time_limit", True)]),
        ("qos: long", "ranks: 2, time_limit: 29m", [("resources.time_limit", False)]),
        ("extra: ['-p gpu']", "ranks: 2, time_limit: 29m", []),
        ("exclude: 's[2-3]'", "ranks: 2", [("slurm.exclude", False)]),
        ("reservation: 'school,church'", "ranks: 2", [("slurm.reservation", True)]),
        ("account: chemistry, qos: short", "ranks: 2", [("slurm.account", True), ("slurm.qos", True)]),
    ],
)  # fmt: skip
def test_what_cannot_run_is_told_from_what_may_wait(slurm, resources, wanted):
    assert found(slurm, resources) == wanted


def test_accounts_are_certain_only_where_slurm_insists_on_them_and_unknown_ones_are_no_fault():
    relaxed = replace(SITE, settings={"AccountingStorageEnforce": "none"})
    assert found("account: chemistry, qos: short", site=relaxed) == [("slurm.account", False), ("slurm.qos", False)]
    unknown = replace(SITE, accounts=None, qos=None, reservations=None)
    assert found("account: chemistry, qos: short, reservation: x", site=unknown) == []


def test_what_exists_is_named_and_what_was_meant_is_guessed():
    (finding,) = findings(plan("resources: {ranks: 2}\nslurm: {partition: GPU}"), SITE)
    assert finding.message == "there is no partition 'GPU'; did you mean 'gpu'? (there are: gpu, night, small)"
    (finding,) = findings(plan("resources: {ranks: 2}\nslurm: {clusters: eas}"), Site("eas", clusters=("east", "west")))
    assert (finding.path, finding.message) == (
        "slurm.clusters", "there is no cluster 'eas'; did you mean 'east'? (there are: east, west)")  # fmt: skip


def test_options_of_the_user_win_over_keys():
    assert asked(plan("resources: {ranks: 2}\nslurm: {partition: a, extra: [-p b, --partition=c]}"), "partition") == "c"
    assert asked(plan("resources: {ranks: 2}\nslurm: {partition: a, extra: [-pb]}"), "partition") == "b"
    assert asked(plan("resources: {ranks: 2}\nslurm: {partition: a, extra: [--parsable2]}"), "partition") == "a"


@pytest.mark.parametrize(
    ("stderr", "path", "certain"),
    [
        ("allocation failure: Invalid feature specification", "slurm.constraint", True),
        ("sbatch: unrecognized option '--foo'", "slurm.extra", True),
        ("sbatch: error: invalid partition specified: x\nallocation failure: Invalid partition name specified",
         "slurm.partition", True),
        ("allocation failure: Invalid account or account/partition combination specified", "slurm.account", True),
        ("allocation failure: Requested node configuration is not available", "slurm", False),
        ("allocation failure: Job violates accounting/QOS policy (job submit limit)", "slurm.account", False),
    ],
)  # fmt: skip
def test_what_sbatch_would_refuse_is_about_a_setting(stderr, path, certain):
    said = said_in_trial(Answer(1, "", stderr))
    assert said is not None
    assert (refused(said).path, refused(said).certain) == (path, certain)


@pytest.mark.parametrize("stderr", ["", "sbatch: error: Unable to contact slurm controller (connect failure)",
                                    "allocation failure: Socket timed out on send/recv operation"])  # fmt: skip
def test_no_answer_of_sbatch_is_no_refusal(stderr):
    assert said_in_trial(Answer(1, "", stderr)) is None


def test_one_fitting_cluster_of_several_is_enough():
    fits, none = (SITE, []), (replace(SITE, cluster="east"), [refused("Invalid feature")])
    assert check._of_clusters([fits, none]) == []
    assert [finding.message[:14] for finding in check._of_clusters([none, none])] == ["cluster east: "] * 2
    absent = (Site("wst", clusters=("west",)), [refused("x")])
    assert check._of_clusters([fits, absent]) == [refused("x")]


def test_lists_of_slurms_programs_are_read():
    assert names_in("root|normal|\nphysics|\n\nroot|\n") == ("root", "physics")
    assert reservations_in("ReservationName=a StartTime=x\n   Nodes=n1\nReservationName=b Start") == ("a", "b")
    assert reservations_in("No reservations in the system\n") == ()


def on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, folder: Path, slurm: str, resources: str = "ranks: 2") -> list[str]:
    """Check a job as the command does; returns the warnings."""
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    head = f"command: [python, -c, pass]\nresources: {{{resources}, allow_root: true}}\nbackend: {{kind: slurm}}"
    monkeypatch.chdir(folder)
    Path("job.yaml").write_text(f"{head}\nslurm:\n  {slurm}\n")
    return list(prepared_jobs("job.yaml", [], str(folder / "jobs"))[0].warnings)


def test_a_real_cluster_is_asked_before_anything_is_submitted(cluster: Cluster, tmp_path: Path, monkeypatch) -> None:
    assert on(cluster, monkeypatch, tmp_path, "nodes: 2") == []
    (warning,) = on(cluster, monkeypatch, tmp_path, "partition: closed")
    assert "takes no jobs to run at present" in warning
    for slurm, words in (
        ("partition: mian", r"job.yaml:5: slurm.partition: there is no partition 'mian'; did you mean 'main'\?"),
        ("nodes: 9", "job.yaml:5: slurm.nodes: 9 nodes are asked for, partition main has 2"),
        ("extra: [--frobnicate]", "job.yaml:5: slurm.extra: SLURM would not take the job as it is: unrecognized option"),
        ("constraint: gold", "job.yaml:5: slurm.constraint: there is no feature in partition main called 'gold'"),
        ("exclude: zz", "job.yaml:5: slurm.exclude: SLURM would not take the job as it is: Invalid node name specified"),
    ):
        with pytest.raises(PlanError, match=words):
            on(cluster, monkeypatch, tmp_path, slurm, "ranks: 9" if "9" in slurm else "ranks: 2")
    assert cluster.run("squeue", "-h", "-t", "all").stdout == ""


def test_a_controller_that_does_not_answer_is_one_sentence_and_holds_nobody_up(cluster: Cluster, tmp_path, monkeypatch) -> None:
    cluster.signal("slurmctld", signal.SIGSTOP)
    try:
        begun = time.monotonic()
        (warning,) = on(cluster, monkeypatch, tmp_path, "partition: mian")
        assert time.monotonic() - begun < 30
    finally:
        cluster.signal("slurmctld", signal.SIGCONT)
    assert warning.startswith("whether SLURM has all that the job names was not checked, because it could not be asked: ")


def test_without_slurm_the_command_says_so_in_one_sentence_and_all_else_works(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python").symlink_to(sys.executable)
    environment = {**os.environ, "PATH": str(programs), "PYTHONPATH": str(ROOT), "HVDGRAB_STATE": str(tmp_path / "s"),
                   "HVDGRAB_RUNTIME": str(tmp_path / "r"), "HVDGRAB_JOBS": str(tmp_path / "jobs")}  # fmt: skip
    job = tmp_path / "job.yaml"

    def typed(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "launcher", *words], cwd=tmp_path, env=environment, capture_output=True,
                              text=True, timeout=120, check=False)  # fmt: skip

    job.write_text("command: [python, -c, pass]\nresources: {ranks: 2}\nbackend:\n  kind: slurm\n")
    for words in (("validate", str(job)), (str(job),)):
        done = typed(*words)
        assert (done.returncode, done.stdout) == (2, ""), done
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"hvdgrab-launch: {job}:4: backend.kind: there is no sbatch on PATH"), line
    job.write_text("command: [python, -c, pass]\nresources: {ranks: 1, allow_root: true}\n")
    assert typed(str(job), "--foreground").returncode == 0


def test_the_same_question_is_asked_once_for_all_variants(cluster: Cluster, tmp_path: Path, monkeypatch) -> None:
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    calls = recorded(tmp_path, monkeypatch, "sinfo", "sbatch", "scontrol")
    head = "command: [python, -c, pass]\nresources: {ranks: 2, allow_root: true}\nslurm: {nodes: 2}\n"
    (tmp_path / "job.yaml").write_text(head + "variants: {seed: [1, 2, 3, 4]}\n")
    assert len(prepared_jobs(str(tmp_path / "job.yaml"), [], str(tmp_path / "jobs"))) == 4
    asked = sorted(line.split()[0] for line in calls.read_text().splitlines())
    assert asked == ["sbatch", "scontrol", "scontrol", "sinfo", "sinfo"]


def test_what_is_said_of_a_job_that_was_not_checked():
    (said,) = Examined([Site(fault="connection refused")], []).warnings()
    assert said == "whether SLURM has all that the job names was not checked, because it could not be asked: connection refused"
