from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.cli.main import commands, main, with_default_command
from launcher.cli.texts import printable, tail
from launcher.host.processes import own_identity
from launcher.jobdir.events import EventLog
from launcher.jobdir.paths import JobPaths
from launcher.spec.loader import find_spec, shipped_directories
from tests.launcher.helpers import clean_environment, command_line, launch

ONE = "name: one\ncommand: [python, -c, 'print(1)']\nresources: {ranks: 1}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HVDGRAB_JOBS", str(tmp_path / "jobs"))
    (tmp_path / "one.yaml").write_text(ONE)
    return tmp_path


def test_a_path_in_the_place_of_a_command_means_run() -> None:
    assert with_default_command(["job.yaml", "--dry-run"]) == ["run", "job.yaml", "--dry-run"]
    assert with_default_command(["--dry-run", "job.yaml"]) == ["run", "--dry-run", "job.yaml"]
    assert with_default_command(["ls"]) == ["ls"]
    assert with_default_command(["./ls"]) == ["run", "./ls"]
    assert with_default_command(["--help"]) == ["--help"]
    assert with_default_command([]) == ["--help"]


def test_help_lists_every_command_on_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {name} " in text for name in commands())
    assert "..." not in text.split("Commands:")[1], "no description is cut"
    about_jobs = {"ls", "show", "logs", "cancel", "retry", "wait", "events", "report"}
    assert commands() == {"run", "validate", "schema", "doctor", "daemon", *about_jobs}


@pytest.mark.parametrize("name", ["start", "stop", "restart", "status", "run", "unit"])
def test_the_daemons_own_commands_have_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["daemon", name, "--help"]) == 0
    assert "Usage: hvdgrab-launch daemon" in capsys.readouterr().out


def test_dry_run_prints_the_plan_and_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["one.yaml", "--dry-run", "--set", "grab.seed=4"]) == 0
    text = capsys.readouterr().out
    assert "-m launcher.attempt.rank.wrapper" in text
    assert "HVDGRAB_GRAB='{\"seed\": 4}'" in text
    assert "binding none" in text
    assert not (here / "jobs").exists()


def test_dry_run_as_json_is_one_document(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["one.yaml", "--dry-run", "--json"]) == 0
    out, err = capsys.readouterr()
    plan = json.loads(out)
    assert (plan["job"]["name"], plan["launch"]["backend"], err) == ("one", "local", "")
    assert plan["job"]["command"][1:] == ["-c", "print(1)"]
    assert plan["spec"]["resources"]["ranks"] == 1
    assert not (here / "jobs").exists()


def test_dry_run_shows_no_control_characters(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "x.yaml").write_text('command: [python, -c, pass, "\\e[31m\\a", "\\udcff", "é"]\nresources: {ranks: 1}')
    assert main(["x.yaml", "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "$'\\x1b[31m\\x07' $'\\xff' 'é'" in text


def test_validate(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "one.yaml"]) == 0
    assert "valid; 1 rank by local" in capsys.readouterr().out
    assert main(["validate", "one.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True
    assert main(["validate", "one.yaml", "--set", "resources.rank=2"]) == 2
    assert "did you mean 'ranks'?" in capsys.readouterr().err
    assert not (here / "jobs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.yaml"], "there is no file none.yaml"),
        (["frobnicate"], "there is no command or file called 'frobnicate'; ready-made jobs: "),
        (["."], ". is a directory; a job is one YAML file"),
        (["/dev/null"], "is not a regular file"),
        (["one.yaml", "--set", "x"], "must look like a.b=value"),
        (["one.yaml", "--frobnicate"], "No such option"),
        (["one.yaml", "two.yaml"], "unexpected extra argument"),
        (["show", "nothing"], "no job 'nothing'"),
        (["logs", "nothing"], "no job 'nothing'"),
        (["logs", "nothing", "--rank", "-1"], "--rank"),
        (["events", "nothing"], "no job 'nothing'"),
        (["report", "nothing"], "no job 'nothing'"),
        (["cancel"], "Missing argument"),
        (["ls", "--state", "finished"], "there is no such state; the states are queued"),
        (["wait", "nothing", "--timeout", "soon"], "--timeout soon: "),
        (["daemon", "again"], "No such command 'again'"),
        (["one.yaml", "--detach", "--foreground"], "--detach does not go with --foreground"),
        (["one.yaml", "--foreground", "--priority", "3"], "--priority is for the daemon's queue"),
        (["one.yaml", "--set", "workdir=/no/such"], "workdir: /no/such is not a directory"),
        (["one.yaml", "--set", "command=no-such-program x"], "command: 'no-such-program' is not an executable program on PATH"),
        (["one.yaml", "--set", "secrets=[NOT_SET_ANYWHERE]"], "NOT_SET_ANYWHERE is not set in this environment"),
        (["one.yaml", "--jobs-dir", "one.yaml"], "cannot be made: "),
        (["one.yaml", "--set", "name=\udcff"], "name: a name consists of"),
    ],
)
def test_mistakes_get_one_message_and_exit_code_2(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


@pytest.mark.parametrize(
    ("variable", "setting", "message"),
    [
        ("hunter2hunter2", "command=python hunter2hunter2", "stands in command"),
        ("hunter2hunter2", "env.A=x-hunter2hunter2", "stands in env"),
        ("hunter2hunter2", "workdir=/tmp/hunter2hunter2", "stands in workdir"),
        ("abc", "name=x", "shorter than 4 characters"),
        ("", "name=x", "is empty in this environment"),
    ],
)
def test_secrets_are_refused_where_they_could_not_be_kept(
    variable: str, setting: str, message: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("API_TOKEN", variable)
    assert main(["one.yaml", "--set", "secrets=[API_TOKEN]", "--set", setting]) == 2
    text = capsys.readouterr().err
    assert message in text
    assert "value of API_TOKEN" in text or "API_TOKEN is empty" in text
    assert not (here / "jobs").exists()


def test_a_job_and_the_commands_that_look_at_it(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["one.yaml", "--foreground"]) == 0
    out = capfd.readouterr().out
    assert "succeeded after" in out
    assert "\x1b" not in out
    assert main(["ls", "--json"]) == 0
    (record,) = json.loads(capfd.readouterr().out)
    assert (record["name"], record["state"], record["exit_code"]) == ("one", "succeeded", 0)
    assert main(["ls"]) == 0
    assert record["id"] in capfd.readouterr().out
    assert main(["logs", "one"]) == 0
    assert capfd.readouterr().out == "1\n"
    assert main(["logs", "one", "-f"]) == 0
    assert capfd.readouterr().out == "1\n"
    assert main(["logs", "one", "--rank", "5"]) == 2
    assert "has ranks 0 to 0, not 5" in capfd.readouterr().err
    assert main(["show", "one"]) == 0
    assert "state      succeeded" in capfd.readouterr().out
    assert main(["show", record["id"], "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["marks"][0]["exit_code"] == 0
    again = main(["validate", record["dir"] + "/spec.yaml"])
    assert again == 0, "the frozen spec can be run again"


def test_a_failed_job_shows_the_reason_and_the_last_lines(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = "for i in range(30): print('line', i)\nraise SystemExit(4)"
    assert main(["one.yaml", "--foreground", "--set", "command=" + json.dumps(["python", "-c", code])]) == 4
    out = capfd.readouterr().out
    assert out.index("line 29") < out.index("failed after")
    assert "line 9\n" not in out, "20 lines, not all"
    assert main(["show", "one"]) == 0
    out = capfd.readouterr().out
    assert "reason     rank 0" in out
    assert "line 29" in out


def test_json_of_a_finished_job(here: Path) -> None:
    ran = launch(here, {"command": ["true"], "name": "j"})
    assert {"id", "name", "state", "exit_code", "dir"} <= set(ran.result)
    assert Path(ran.result["dir"]).is_dir()


def test_logs_can_be_followed_until_the_end_of_the_job(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    job = JobPaths(here / "jobs" / "f-20250102-030405-00ff")
    job.create()
    job.rank_log(0).write_bytes(b"first\n")
    EventLog(job).add("submitted", ranks=1, **own_identity())
    code = f"import time; time.sleep(1); open({str(job.rank_log(0))!r}, 'ab').write(b'second\\n'); "
    code += f"open({str(job.events)!r}, 'a').write('{{\"event\": \"finished\", \"state\": \"succeeded\", \"exit_code\": 0}}\\n')"
    with subprocess.Popen([*command_line()[:1], "-c", code]):
        assert main(["logs", "f", "-f"]) == 0
    assert capfd.readouterr().out == "first\nsecond\n"


def test_a_reader_that_goes_away_is_no_error(here: Path) -> None:
    job = JobPaths(here / "jobs" / "f-20250102-030405-00ff")
    job.create()
    job.rank_log(0).write_bytes(b"x" * 70 + b"\n" * 2_000_000)
    line = f"{' '.join(command_line('logs', 'f'))} | head -c 10 >/dev/null; exit ${{PIPESTATUS[0]}}"
    environment = clean_environment({"HVDGRAB_JOBS": str(here / "jobs")})
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_ready_made_jobs_are_found_from_anywhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = here / "shipped" / "configs"
    folder.mkdir(parents=True)
    (folder / "quickstart.yaml").write_text(ONE)
    monkeypatch.setattr("launcher.spec.loader.shipped_directories", lambda: [folder])
    for wanted in ("configs/quickstart.yaml", "quickstart", "quickstart.yaml"):
        assert find_spec(wanted) == folder / "quickstart.yaml"
    (here / "quickstart.yaml").write_text(ONE)
    assert find_spec("quickstart.yaml") == Path("quickstart.yaml"), "the user's own file comes first"
    for wanted in ("/configs/quickstart.yaml", "../quickstart.yaml", "other/quickstart.yaml"):
        with pytest.raises(Exception, match="there is no file"):
            find_spec(wanted)


def test_the_checkouts_configs_are_looked_at() -> None:
    assert all(path.name == "configs" for path in shipped_directories())
    assert shipped_directories()


def test_help_answers_in_time(capsys: pytest.CaptureFixture[str]) -> None:
    wall, cpu = [], []
    for _ in range(5):
        before, start = os.times(), time.monotonic()
        subprocess.run(command_line("--help"), env=clean_environment(), stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        wall.append(time.monotonic() - start)
        cpu.append(after.children_user + after.children_system - before.children_user - before.children_system)
    with capsys.disabled():
        print(f"\n--help: median of 5: {statistics.median(wall):.2f} s wall clock, {statistics.median(cpu):.2f} s of processor")
    assert statistics.median(cpu) < 0.5


def test_text_for_terminals() -> None:
    assert printable("a\x1b[31mb\x1b[0m\x07\x9bc\td") == "abc\td"


def test_tail(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log) == []
    log.write_bytes(b"\n\n")
    assert tail(log) == []
    log.write_bytes(b"10%\r20%\r30%\nbad \xff\n")
    assert tail(log, 2) == ["30%", "bad \ufffd"]


def test_a_deleted_current_directory_is_one_sentence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && exec "$2" -m launcher ls'
    command = ["sh", "-c", script, "sh", str(gone), sys.executable]
    done = subprocess.run(command, env=clean_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "hvdgrab-launch: the current directory has been deleted: change to one that exists",
    )
