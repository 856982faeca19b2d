from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hvdgrab.examples.data import WIKITEXT2
from tests.examples.real_data import real_data
from tests.real import ROOT, need_horovod
from tests.slurm.cluster import Cluster
from tests.slurm.conftest import need_pmix
from tests.slurm.orders import STEADY, Line, Reference, Training, results, settings, under_mpirun, variants
from tests.slurm.test_launch import User
from tests.slurm.test_scripts import submit

DIGITS = ("python", "-m", "hvdgrab.examples.digits", "--epochs", "2", "--batch-size", "64", "--lr", "0.1")
LSTM = ("python", "-m", "hvdgrab.examples.lstm_wikitext2", "--epochs", "3", "--batch-size", "4", "--lr", "5", "--limit", "560")
SAVING = ("python", "-m", "tests.slurm.saving_program", "4")
"""And seconds a step."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Trainings under mpirun, each run once."""
    known: dict[Training, list[Line]] = {}

    def run(training: Training) -> list[Line]:
        if training not in known:
            known[training] = under_mpirun(training, tmp_path_factory.mktemp("mpirun") / "job")
        return known[training]

    return run


@pytest.fixture
def far_user(far_cluster: Cluster, tmp_path: Path) -> Iterator[User]:
    """Somebody on the login node of a cluster whose nodes have a network between them."""
    need_horovod()
    user = User(far_cluster, tmp_path, host="login")
    yield user
    user.type("daemon", "stop", code=None)


def through_the_launcher(user: User, training: Training, *words: str) -> list[Line]:
    """Submit it to two nodes, follow it to its end, and return its results."""
    job = {
        "command": list(training.command), "grab": json.loads(training.grab), "env": STEADY, "backend": {"kind": "slurm"},
        "slurm": {"nodes": 2}, "resources": {"ranks": training.ranks, "allow_root": True, "threads_per_rank": 1},
    }  # fmt: skip
    ended = user.job(job, *words)
    assert (ended["state"], ended["exit_code"]) == ("succeeded", 0), ended
    assert (Path(ended["dir"]) / "report.html").exists(), "made by the job itself"
    return results(Path(ended["dir"]))


def script(cluster: Cluster, folder: Path, name: str, training: Sequence[str], *options: str, **variables: str) -> list[Path]:
    """Submit a batch script from ``folder/script`` and wait; returns the directories of its jobs."""
    need_horovod()
    need_pmix()
    folder /= "script"
    folder.mkdir()
    paths = {"PYTHONPATH": str(ROOT), **STEADY, **variables}
    code, said = submit(cluster, folder, *options, str(ROOT / "slurm" / name), *training, **paths)
    assert code == 0, said
    found = sorted(path.parent for path in folder.glob("jobs/**/metrics.jsonl"))
    assert all(str(path) in said for path in found), said
    return found


def log(job: Path) -> str:
    """What a script's job printed."""
    return (job.parents[1] / f"{job.name}.log").read_text()


def test_two_hosts_through_the_launcher_order_as_under_mpirun(far_user: User, reference: Reference) -> None:
    training = Training((*DIGITS, "--limit", "512"), settings("several_nodes.sh"), 2)
    expected = reference(training)
    assert [line["epoch"] for line in expected] == [0, 1]
    assert expected[0]["order_hash"] != expected[1]["order_hash"]
    assert through_the_launcher(far_user, training) == expected


@pytest.mark.soak
def test_the_quickstart_through_the_launcher_orders_as_under_mpirun(far_user: User, reference: Reference) -> None:
    on_slurm = ["backend.kind=slurm", "slurm.nodes=2", "resources.ranks=4", *(f"env.{name}={STEADY[name]}" for name in STEADY)]
    words = [word for setting in on_slurm for word in ("--set", setting)]
    ended = json.loads(far_user.type(str(ROOT / "configs" / "quickstart.yaml"), "--json", *words))
    assert (ended["state"], ended["exit_code"]) == ("succeeded", 0), ended
    found = results(Path(ended["dir"]))
    plan = json.loads((Path(ended["dir"]) / "plan.json").read_text())
    assert found == reference(Training(tuple(plan["job"]["command"]), plan["launch"]["environment"]["HVDGRAB_GRAB"], 4))
    assert found[-1]["epoch"] == 29
    assert float(str(found[-1]["test_accuracy"])) > 0.95


@pytest.mark.soak
def test_the_lstm_on_two_nodes_through_the_launcher_and_a_script_orders_as_under_mpirun(
    far_user: User, reference: Reference, tmp_path: Path
) -> None:
    real_data(WIKITEXT2)
    training = Training(LSTM, settings("several_nodes.sh"), 4)
    expected = reference(training)
    losses = [float(str(line["train_loss"])) for line in expected]
    assert losses == sorted(losses, reverse=True)
    assert through_the_launcher(far_user, training) == expected
    (job,) = script(far_user.cluster, tmp_path, "several_nodes.sh", LSTM)
    assert results(job) == expected
    assert "4 ranks on 2 nodes: n1 0-1, n2 2-3; hierarchical communication" in log(job)


@pytest.mark.soak
@pytest.mark.parametrize(("ranks", "grab", "words"), [
    (4, settings("order_server.sh"), ("--set", "resources.ranks=3", "--set", "resources.server_ranks=1")),
    (4, settings("several_nodes.sh"), ("--set", "slurm.mpi=mpirun")),
], ids=["a server", "mpirun"])  # fmt: skip
def test_other_ways_through_the_launcher_order_as_under_mpirun(
    far_user: User, reference: Reference, ranks: int, grab: str, words: tuple[str, ...]
) -> None:
    training = Training(DIGITS, grab, ranks)
    assert through_the_launcher(far_user, training, *words) == reference(training)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "ranks", "mpi"), [
    ("one_node.sh", 2, ""), ("several_nodes.sh", 4, "mpirun"), ("order_server.sh", 4, ""), ("order_server_het.sh", 3, ""),
])  # fmt: skip
def test_a_script_orders_as_under_mpirun(
    far_cluster: Cluster, tmp_path: Path, reference: Reference, name: str, ranks: int, mpi: str
) -> None:
    (job,) = script(far_cluster, tmp_path, name, DIGITS, MPI_TYPE=mpi)
    assert results(job) == reference(Training(DIGITS, settings(name), ranks))


@pytest.mark.soak
def test_every_variant_of_the_array_orders_as_under_mpirun(far_cluster: Cluster, tmp_path: Path, reference: Reference) -> None:
    jobs = script(far_cluster, tmp_path, "variants_array.sh", DIGITS)
    expected = [reference(Training(DIGITS, grab, 2)) for grab in variants("variants_array.sh")]
    assert [results(job) for job in jobs] == expected
    assert [line["order"] for found in expected for line in found] == ["reshuffle", "reshuffle", "rr", "rr", "cd-grab", "cd-grab"]


@pytest.mark.soak
def test_a_training_that_goes_back_into_the_queue_orders_as_one_that_was_not_interrupted(far_user: User, tmp_path: Path) -> None:
    uninterrupted = tmp_path / "mpirun"
    expected = under_mpirun(Training((*SAVING, "0"), settings("requeue.sh"), 2), uninterrupted)
    (job,) = script(far_user.cluster, tmp_path, "requeue.sh", (*SAVING, "0.6"), TRAIN_SECONDS="40", SAVE_SECONDS="60")
    said = log(job)
    assert said.count("back into the queue") == said.count("goes on from") / 2 >= 1, said
    limits = {
        "command": ["python", "-m", *SAVING[2:], "0.6"], "grab": json.loads(settings("requeue.sh")), "env": STEADY,
        "checkpoint": {"signal": "USR1", "before_limit": "50s", "require_finished": True}, "backend": {"kind": "slurm"},
        "restart": {"time_limit": 9, "backoff": "0s"}, "slurm": {"nodes": 2},
        "resources": {"ranks": 2, "allow_root": True, "threads_per_rank": 1, "time_limit": "90s"},
    }  # fmt: skip
    ended = far_user.job(limits)
    assert (ended["state"], ended["exit_code"]) == ("succeeded", 0), ended
    assert ended["attempt"] > 1
    for folder in (job, Path(ended["dir"])):
        assert (folder / "weights").read_text() == (uninterrupted / "weights").read_text()
        found = {line["epoch"]: line["order_hash"] for line in results(folder)}  # an interrupted epoch has a line for each part
        assert found == {line["epoch"]: line["order_hash"] for line in expected}
