"""The ready-made jobs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.jobdir.paths import JobPaths
from launcher.plan.planning import make_plan
from launcher.spec.loader import Source, load, shipped_names
from tests.launcher.helpers import CHECKOUT, JOB_ID, host, load_all_text

CONFIGS = sorted((CHECKOUT / "configs").glob("*.yaml"))
NEEDS = {"one_host", "several_hosts", "compare_orders", "restart_on_failure", "order_server", "slurm"}
TRAININGS = {path.stem for path in (CHECKOUT / "hvdgrab" / "examples").glob("*.py")}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("root", [False, True])
def test_every_ready_made_job_can_be_planned(path: Path, root: bool) -> None:
    consent = ["resources.allow_root=true"] if root else []
    specs = load(Source.of_file(path), consent)
    for spec in specs:
        plan = make_plan(spec, host(root=root), JobPaths(Path("/jobs") / JOB_ID))
        assert plan.job.command[:2] == ("/opt/py/bin/python", "-m")
        assert plan.job.command[2].rpartition(".")[2] in TRAININGS


def test_there_is_one_for_each_training_and_each_common_need() -> None:
    names = {path.stem for path in CONFIGS}
    assert names >= NEEDS | {"quickstart", "lstm_wikitext2", "m4_mlp"}
    assert set(shipped_names()) == names
    used = {load(Source.of_file(path))[0].command[2].rpartition(".")[2] for path in CONFIGS}
    assert used >= {"digits", "lstm_wikitext2", "m4_mlp"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_ready_made_job_names_its_format_and_itself(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# "), "it says what it is"
    assert "\nversion: 1\n" in text
    assert f"\nname: {path.stem.replace('_', '-')}\n" in text


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_what_is_commented_out_is_right_too(path: Path) -> None:
    text = re.sub(r"(?m)^( +)# ([a-z_]+: )", r"\1\2", path.read_text())
    assert load_all_text(text, path.name, default_name="n")
