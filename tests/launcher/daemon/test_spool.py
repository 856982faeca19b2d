from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher import facts
from launcher.daemon import crash
from launcher.daemon.spool import RECOVER_SECONDS, SETTLED_SECONDS, Spool
from launcher.store.database import RecordError
from tests.launcher.daemon.kit import World

TWO = "name: two\ncommand: [python, -c, pass]\nresources: {ranks: 1}\nvariants: {seed: [0, 1]}\n"


@pytest.fixture(autouse=True)
def own_jobs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HVDGRAB_JOBS", str(tmp_path / "jobs"))
    known = facts.collect()
    monkeypatch.setattr(facts, "collect", lambda *_, **__: known)


def look(world: World, spool: Spool, seconds: float = SETTLED_SECONDS) -> None:
    spool.look(world.clock.now)
    world.clock.now += seconds
    spool.look(world.clock.now)


@pytest.mark.parametrize("step", [name for name in crash.STEPS if name.startswith(("spool", "submit"))])
@pytest.mark.parametrize("passage", [1, 2])
def test_a_crash_at_any_step_neither_loses_nor_doubles_a_job_of_the_spool(
    world: World, step: str, passage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crash(BaseException):
        pass

    def passing(name: str) -> None:
        passed.append(name)
        if name == step and passed.count(name) == passage:
            raise Crash

    passed: list[str] = []
    for module in ("spool", "desk"):
        monkeypatch.setattr(f"launcher.daemon.{module}.step", passing)
    (world.dirs.spool / "two.yaml").write_text(TWO)
    spool = Spool(world.context, world.desk)
    try:
        look(world, spool)
    except Crash:
        world.die()
        look(world, Spool(world.context, world.desk))
    assert passed.count(step) >= min(passage, 1 if step == "spool-taken" else 2)
    jobs = world.desk.views((), None, None, None)
    assert sorted(job.name for job in jobs) == ["two-seed-0", "two-seed-1"]
    assert len({job.group for job in jobs}) == 1
    assert len(list((world.folder / "jobs").iterdir())) == 2, "no half-made directory is left"
    assert [path.name for path in (world.dirs.spool / "done").iterdir()] == ["two.yaml"]
    assert list((world.dirs.spool / "taken").iterdir()) == []


def test_a_full_disk_lets_the_file_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.dirs.spool / "two.yaml").write_text(TWO)
    spool = Spool(world.context, world.desk)
    submit = world.desk.submit

    def full(*_: object) -> None:
        raise RecordError("the disk is full")

    monkeypatch.setattr(world.desk, "submit", full)
    look(world, spool)
    assert world.store.counts() == {}
    monkeypatch.setattr(world.desk, "submit", submit)
    world.clock.now += RECOVER_SECONDS
    spool.look(world.clock.now)
    assert world.store.counts() == {"queued": 2}


def test_files_of_one_name_and_names_that_are_no_text_do_not_get_in_each_others_way(world: World) -> None:
    spool = Spool(world.context, world.desk)
    for _ in range(2):
        (world.dirs.spool / "same.yaml").write_text("nonsense: 1\n")
        look(world, spool)
    odd = os.fsencode(world.dirs.spool) + b"/odd\xff\n.yaml"
    Path(os.fsdecode(odd)).write_text("nonsense: 1\n")
    look(world, spool)
    names = sorted(path.name for path in (world.dirs.spool / "refused").iterdir())
    assert names == sorted(
        [
            "same.yaml",
            "same.yaml.error",
            "same-2.yaml",
            "same-2.yaml.error",
            os.fsdecode(b"odd\xff\n.yaml"),
            os.fsdecode(b"odd\xff\n.yaml.error"),
        ]
    )


def test_pipes_directories_and_other_endings_are_passed_over_or_refused(world: World) -> None:
    os.mkfifo(world.dirs.spool / "pipe.yaml")
    (world.dirs.spool / "folder.yaml").mkdir()
    (world.dirs.spool / "notes.txt").write_text("x")
    look(world, Spool(world.context, world.desk))
    assert (world.dirs.spool / "refused" / "pipe.yaml.error").read_text() == "it is no regular file\n"
    assert (world.dirs.spool / "folder.yaml").is_dir()
    assert (world.dirs.spool / "notes.txt").exists()
