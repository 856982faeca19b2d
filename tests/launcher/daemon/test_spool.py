from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from launcher.daemon import main
from launcher.daemon.context import CRASH_STEPS
from launcher.daemon.record import RecordError
from launcher.daemon.spool import ODD_SECONDS, RECOVER_SECONDS, SETTLED_SECONDS, Spool
from launcher.jobdir.plan import Plan
from launcher.plan import facts
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


@pytest.mark.parametrize("step", [name for name in CRASH_STEPS if name.startswith(("spool", "submit"))])
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
    for module in ("spool", "requests"):
        monkeypatch.setattr(f"launcher.daemon.{module}.step", passing)
    (world.dirs.spool / "two.yaml").write_text(TWO)
    spool = Spool(world.context, world.requests)
    try:
        look(world, spool)
    except Crash:
        world.die()
        look(world, Spool(world.context, world.requests))
    assert passed.count(step) >= min(passage, 1 if step == "spool-taken" else 2)
    jobs = world.requests.views(())
    assert sorted(job.name for job in jobs) == ["two-seed-0", "two-seed-1"]
    assert len({job.group for job in jobs}) == 1
    assert len(list((world.folder / "jobs").iterdir())) == 2, "no half-made directory is left"
    assert [path.name for path in (world.dirs.spool / "done").iterdir()] == ["two.yaml"]
    assert list((world.dirs.spool / "taken").iterdir()) == []


def test_a_full_disk_lets_the_file_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.dirs.spool / "two.yaml").write_text(TWO)
    spool = Spool(world.context, world.requests)
    submit = world.requests.submit

    def full(*_: object) -> None:
        raise RecordError("the disk is full")

    monkeypatch.setattr(world.requests, "submit", full)
    look(world, spool)
    assert world.store.counts() == {}
    monkeypatch.setattr(world.requests, "submit", submit)
    world.clock.now += RECOVER_SECONDS
    spool.look(world.clock.now)
    assert world.store.counts() == {"queued": 2}


def test_a_disk_that_is_full_for_the_spool_is_a_problem_of_the_daemon_until_there_is_space(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (world.dirs.spool / "two.yaml").write_text(TWO)
    with monkeypatch.context() as patch:
        patch.setattr("launcher.daemon.spool.replace_text", full)
        look(world, Spool(world.context, world.requests))
        assert "/taken cannot be written: the disk is full" in str(world.requests.status().problem)
        patch.setattr(Path, "write_bytes", full)
        main._try_writing(world.context)
        assert world.requests.status().problem is not None
    main._try_writing(world.context)
    assert world.requests.status().problem is None


def test_files_of_one_name_and_names_that_are_no_text_do_not_get_in_each_others_way(world: World) -> None:
    spool = Spool(world.context, world.requests)
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


def refusals(world: World) -> dict[str, str]:
    return {path.stem: path.read_text() for path in (world.dirs.spool / "refused").glob("*.error")}


def test_whatever_is_no_job_is_moved_aside_with_the_reason_and_what_is_being_written_is_left_alone(world: World) -> None:
    os.mkfifo(world.dirs.spool / "pipe.yaml")
    (world.dirs.spool / "folder.yaml").mkdir()
    (world.dirs.spool / "folder" / "below").mkdir(parents=True)
    (world.dirs.spool / "notes.txt").write_text("x")
    (world.dirs.spool / "link").symlink_to("/etc/passwd")
    left = {".job.yaml", "job.yaml.part", "job.yaml~", "JOB.YAML.TMP"}
    for name in left:
        (world.dirs.spool / name).write_text("x")
    spool = Spool(world.context, world.requests)
    look(world, spool)
    assert refusals(world) == {"pipe.yaml": "it is no regular file\n"}
    assert (world.dirs.spool / "notes.txt").exists(), "it may be on its way to another name"
    look(world, spool, ODD_SECONDS)
    texts = refusals(world)
    assert set(texts) == {"pipe.yaml", "folder.yaml", "folder", "notes.txt", "link"}
    assert "it is a directory" in texts["folder.yaml"] and "it is a directory" in texts["folder"]
    assert "does not end in .yaml or .yml" in texts["notes.txt"]
    assert "links are not followed" in texts["link"]
    assert {path.name for path in world.dirs.spool.iterdir()} == left | {"taken", "refused"}


@pytest.mark.parametrize("name", ["UP.YAML", "up.yml", "Up.YmL"])
def test_endings_count_in_any_case(world: World, name: str) -> None:
    (world.dirs.spool / name).write_text(TWO)
    look(world, Spool(world.context, world.requests))
    assert world.store.counts() == {"queued": 2}
    assert (world.dirs.spool / "done" / name).exists()


def test_the_reason_names_the_file_where_it_lies_now(world: World) -> None:
    (world.dirs.spool / "bad.yaml").write_text("command: [python]\nresources: {ranks: x}\n")
    look(world, Spool(world.context, world.requests))
    text = refusals(world)["bad.yaml"]
    assert str(world.dirs.spool / "refused" / "bad.yaml") in text
    assert "/taken/" not in text


def test_a_job_of_the_spool_runs_in_the_users_home_unless_it_says_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    home = world.folder / "home"
    (home / "work").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (world.dirs.spool / "a.yaml").write_text("name: a\ncommand: [python, -c, pass]\nresources: {ranks: 1}\n")
    (world.dirs.spool / "b.yaml").write_text("name: b\ncommand: [python, -c, pass]\nresources: {ranks: 1}\nworkdir: work\n")
    look(world, Spool(world.context, world.requests))
    places = {
        job.name: Plan.read(world.paths(job.id).plan).job.workdir for job in world.requests.views(())
    }
    assert places == {"a": str(home), "b": str(home / "work")}


def test_a_file_that_cannot_be_put_away_becomes_jobs_once_and_that_is_said_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (world.dirs.spool / "two.yaml").write_text(TWO)
    spool = Spool(world.context, world.requests)
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if target.parent.name == "done":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        for _ in range(4):
            look(world, spool, RECOVER_SECONDS)
    assert world.store.counts() == {"queued": 2}
    assert len([record for record in caplog.records if "cannot be moved to" in record.getMessage()]) == 1
    look(world, spool, RECOVER_SECONDS)
    assert world.store.counts() == {"queued": 2}
    (world.dirs.spool / "two.yaml").write_text(TWO)
    look(world, spool)
    assert world.store.counts() == {"queued": 4}, "another file of the same name is another job"


def test_notes_of_an_earlier_file_do_not_make_a_new_one_of_its_name_pass_for_done(world: World) -> None:
    (world.dirs.spool / "two.yaml").write_text(TWO)
    spool = Spool(world.context, world.requests)
    look(world, spool)
    ids = [job.id for job in world.requests.views(())]
    notes = {"file": "(1, 2, 3, 4)", "jobs": ids}
    (world.dirs.spool / "taken" / ".two.yaml.taken.json").write_text(json.dumps(notes))  # as a crash leaves them
    (world.dirs.spool / "two.yaml").write_text(TWO)
    look(world, spool)
    assert world.store.counts() == {"queued": 4}


def test_a_file_that_the_version_before_had_begun_to_submit_is_refused_once(world: World) -> None:
    spool = Spool(world.context, world.requests)
    (world.dirs.spool / "taken").mkdir()
    (world.dirs.spool / "taken" / "two.yaml").write_text(TWO)
    (world.dirs.spool / "taken" / ".two.yaml.ids").write_text("1:2:3:4\na-20260101-000000-abcd\n")
    look(world, spool)
    assert "an earlier version of hvdgrab-launch had begun to submit it" in refusals(world)["two.yaml"]
    (world.dirs.spool / "two.yaml").write_text(TWO)
    look(world, spool)
    assert world.store.counts() == {"queued": 2}


def test_such_a_file_is_not_taken_while_it_cannot_be_moved_aside(world: World) -> None:
    spool = Spool(world.context, world.requests)
    (world.dirs.spool / "taken").mkdir()
    (world.dirs.spool / "taken" / "two.yaml").write_text(TWO)
    (world.dirs.spool / "taken" / ".two.yaml.ids").write_text("1:2:3:4\na-20260101-000000-abcd\n")
    (world.dirs.spool / "refused").touch()
    look(world, spool)
    look(world, spool)
    assert world.store.counts() == {}


def test_a_file_that_somebody_holds_open_for_writing_is_taken_whole_after_a_pause_of_any_length(world: World) -> None:
    spool = Spool(world.context, world.requests)
    half = len(TWO) // 2
    with (world.dirs.spool / "two.yaml").open("w") as file:
        file.write(TWO[:half])
        file.flush()
        for _ in range(5):
            look(world, spool)
            world.clock.now += 2.5
        assert (world.store.counts(), refusals(world)) == ({}, {})
        file.write(TWO[half:])
    with (world.dirs.spool / "two.yaml").open():
        look(world, spool)
    assert world.store.counts() == {"queued": 2}, "who only reads it holds nobody up"


def test_a_refusal_that_cannot_be_written_is_kept_until_it_can(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.dirs.spool / "bad.yaml").write_text("nonsense: 1\n")
    spool = Spool(world.context, world.requests)
    open_ = Path.open

    def full(path: Path, *arguments: Any, **named: Any) -> Any:
        if path.name.endswith(".error"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return open_(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        look(world, spool)
        assert (world.dirs.spool / "taken" / "bad.yaml").exists()
    world.clock.now += RECOVER_SECONDS
    spool.look(world.clock.now)
    assert set(refusals(world)) == {"bad.yaml"}
    assert (world.dirs.spool / "refused" / "bad.yaml").exists()


@pytest.mark.parametrize("letter", ["n", "é"])
def test_a_name_that_leaves_no_space_for_the_files_beside_it_is_refused_under_a_shorter_one(world: World, letter: str) -> None:
    size = len(letter.encode())
    name = letter * (250 // size) + ".yaml"
    (world.dirs.spool / name).write_text(TWO)
    look(world, Spool(world.context, world.requests))
    ((stem, text),) = refusals(world).items()
    assert f"its name is {250 + 5} bytes long" in text
    assert (world.dirs.spool / "refused" / stem).read_text() == TWO
    assert stem.endswith(letter + ".yaml") and name.startswith(stem[:-5])
    assert list((world.dirs.spool / "taken").iterdir()) == []


def test_a_name_of_several_lines_is_one_line_in_the_log_and_in_the_reason(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hvdgrab.daemon")
    (world.dirs.spool / "bad\nERROR \x1b[2J.yaml").write_text("command: [python]\nresources: {ranks: x}\n")
    (world.dirs.spool / "good\nname.yaml").write_text(TWO)
    look(world, Spool(world.context, world.requests))
    ((_, text),) = refusals(world).items()
    assert r"/refused/bad\nERROR \x1b[2J.yaml" in text
    lines = caplog.text.splitlines()
    assert any(r"spool: good\nname.yaml became two-seed-0" in line for line in lines)
    assert any(r"spool: bad\nERROR \x1b[2J.yaml is refused" in line for line in lines)
    assert not any(line.startswith(("ERROR", "name.yaml")) for line in lines)
    assert "\x1b" not in caplog.text + text
