"""What the README shows is run."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.real import ROOT, mpirun, need_horovod

TEXT = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"no {language} block"
    return found


def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "launcher", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_the_script_trains_on_two_ranks(tmp_path):
    need_horovod()
    (script,) = [block for block in blocks("python") if "hvd.init()" in block]
    (tmp_path / "train.py").write_text(script)
    job = mpirun(2, [str(tmp_path / "train.py")], timeout=180, environment={"HVDGRAB_JOB_DIR": str(tmp_path)})
    assert job.returncode == 0, job.stderr
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_the_functions_run():
    (script,) = [block for block in blocks("python") if "hvd" not in block.replace("hvdgrab", "")]
    names: dict[str, object] = {}
    exec(compile(script, "README.md", "exec"), names)
    assert names["l2"] > 0


def test_the_yaml_is_valid_and_plans(tmp_path):
    first, *others = blocks("yaml")
    (tmp_path / "job.yaml").write_text(first)
    planned = launch(str(tmp_path / "job.yaml"), "--dry-run", "--set", "grab.order=rr", "--set", "backend.kind=mpirun")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "hvdgrab.examples.digits --epochs 30" in planned.stdout
    assert launch("validate", str(tmp_path / "job.yaml")).returncode == 0
    rest = "version: 1\ncommand: [python, -c, pass]\nresources: {ranks: 2, allow_root: true, oversubscribe: true}\n"
    for number, section in enumerate(others):
        (tmp_path / f"{number}.yaml").write_text(rest + section)
        checked = launch("validate", str(tmp_path / f"{number}.yaml"))
        assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("line", re.findall(r"^hvdgrab-launch ([a-z]+) ", "\n".join(blocks("bash")), re.MULTILINE))
def test_the_commands_exist(line):
    if line not in ("job",):
        assert launch(line, "--help").returncode == 0


@pytest.mark.parametrize("target", sorted(set(re.findall(r"^make ([a-z]+)|`make ([a-z]+)", TEXT, re.MULTILINE))))
def test_the_make_targets_exist(target):
    subprocess.run(["make", "-n", "".join(target)], cwd=ROOT, capture_output=True, timeout=30, check=True)


def test_the_orders_are_those_that_exist():
    from hvdgrab.config import ORDERS

    table = TEXT.split("## Orders")[1].split("\n\n")[1]
    first_cells = "\n".join(row.split("|")[1] for row in table.splitlines())
    assert set(re.findall(r"`([a-z-]+)`", first_cells)) == set(ORDERS)


def test_the_files_and_columns_it_names_exist():
    from hvdgrab.report.metrics import FIELDS

    columns = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", TEXT.split("in `metrics.jsonl`")[1].split("##")[0], re.MULTILINE)
    assert {name for cell in columns for name in re.findall(r"\w+", cell)} <= FIELDS
    for name in re.findall(r"`(\w+\.yaml)`", TEXT):
        assert (ROOT / "configs" / name).exists() or name in ("spec.yaml", "daemon.yaml", "bad.yaml"), name
