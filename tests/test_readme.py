"""What the README and the pages in ``docs/`` show is tried: scripts run, YAML plans, commands parse, and what is named exists."""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import runpy
import shlex
import subprocess
from collections.abc import Iterator

import pytest
import typer

from hvdgrab.bench.__main__ import _parser as bench_parser
from launcher.cli.app import app
from launcher.cli.main import main, with_default_command
from tests.real import ROOT, mpirun, need_horovod

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "slurm" / "README.md"]
TEXTS = {str(path.relative_to(ROOT)): path.read_text() for path in PAGES}
README = TEXTS["README.md"]
SECTION_OF_A_JOB = "version: 1\ncommand: [python, -c, pass]\nresources: {ranks: 2, allow_root: true, oversubscribe: true}\n"
"""What stands before a block of YAML that shows some sections of a job only."""
LAUNCH = typer.main.get_command(app)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def every_block(language: str) -> Iterator[tuple[str, str]]:
    for page, text in TEXTS.items():
        yield from ((page, block) for block in blocks(text, language))


def commands(program: str) -> Iterator[tuple[str, list[str]]]:
    """Page and words of each command line of a program, in blocks of shell and between backticks."""
    for page, text in TEXTS.items():
        shown = [line for block in blocks(text, "bash") for line in block.splitlines()]
        shown += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
        for line in shown:
            words = shlex.split(line, comments=True)
            if words[:1] == [program] or words[:1] == [f".venv/bin/{program}"]:
                yield page, words[1:]


def headings(text: str) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    found = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in found}


# --- the scripts ---------------------------------------------------------------------------------------------------------------


def test_the_script_trains_on_two_ranks(tmp_path):
    need_horovod()
    (script,) = [block for block in blocks(README, "python") if "hvd.init()" in block]
    (tmp_path / "train.py").write_text(script)
    job = mpirun(2, [str(tmp_path / "train.py")], timeout=180, environment={"HVDGRAB_JOB_DIR": str(tmp_path)})
    assert job.returncode == 0, job.stderr
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3


def test_the_script_that_saves_itself_goes_on_from_there(tmp_path):
    need_horovod()
    (script,) = [block for block in blocks(TEXTS["docs/training.md"], "python") if "StopSignal()" in block]
    asked = script.replace("hvd.init()\n", "hvd.init()\nos.kill(os.getpid(), 10)  # USR1\n")
    assert asked != script
    (tmp_path / "asked.py").write_text(asked)
    (tmp_path / "train.py").write_text(script)
    variables = {"HVDGRAB_JOB_DIR": str(tmp_path), "HVDGRAB_FINISHED": str(tmp_path / "finished.json")}
    first = mpirun(1, [str(tmp_path / "asked.py")], timeout=180, environment=variables)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "checkpoints" / "rank-0.pt").exists()
    assert not (tmp_path / "finished.json").exists()
    second = mpirun(1, [str(tmp_path / "train.py")], timeout=180, environment=variables)
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "finished.json").exists()
    epochs = [json.loads(line)["epoch"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert epochs == [0, 0, 1, 2]  # the epoch that was left early has a line of its own


def test_the_functions_run():
    scripts = [block for _, block in every_block("python") if "hvd" not in block.replace("hvdgrab", "")]
    assert len(scripts) == 2
    names: dict[str, object] = {}
    for script in scripts:
        exec(compile(script, "README.md", "exec"), names)
    assert names["l2"] > 0
    assert sorted(names["order"]) == list(range(100))


# --- the YAML ------------------------------------------------------------------------------------------------------------------


def test_the_first_yaml_plans(tmp_path, capsys):
    (first,) = blocks(README, "yaml")
    (tmp_path / "job.yaml").write_text(first)
    overrides = ["--set", "grab.order=rr", "--set", "backend.kind=mpirun"]
    assert main([str(tmp_path / "job.yaml"), "--dry-run", *overrides]) == 0
    assert "hvdgrab.examples.digits --epochs 30" in capsys.readouterr().out
    assert main(["validate", str(tmp_path / "job.yaml")]) == 0


@pytest.mark.parametrize("page", [page for page in TEXTS if page != "README.md" and blocks(TEXTS[page], "yaml")])
def test_the_sections_of_yaml_are_valid(page, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))  # this host's SLURM may lack what the page's has
    for number, section in enumerate(blocks(TEXTS[page], "yaml")):
        head = SECTION_OF_A_JOB
        settings = ["--set", "resources.allow_root=true", "--set", "resources.oversubscribe=true"]
        if section.startswith("network:"):  # wires that this host may not have
            settings += ["--set", "network.interface=lo", "--set", "network.ucx_devices=null"]
        if section.startswith("resources:"):
            head = head.rpartition("resources:")[0]
        (tmp_path / f"{number}.yaml").write_text(head + section)
        assert main(["validate", str(tmp_path / f"{number}.yaml"), *settings]) == 0, capsys.readouterr().err


def test_the_reference_is_made_from_the_schema():
    made = runpy.run_path(str(ROOT / "docs" / "make_yaml.py"))["page"](TEXTS["docs/yaml.md"])
    assert TEXTS["docs/yaml.md"] == made, "run `python docs/make_yaml.py`"
    assert not re.search(r"\| *\|$", made, re.MULTILINE), "a setting lacks its description"


# --- the commands --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("page", "words"), [(page, words) for page, words in commands("hvdgrab-launch") if words], ids=str)
def test_the_commands_of_the_launcher_parse(page, words):
    command, rest = LAUNCH, with_default_command([word for word in words if word not in ("COMMAND", "--help")])
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    if not {"--help", "--version"} & {*words}:
        command.make_context(command.name, list(rest))


@pytest.mark.parametrize(("page", "words"), list(commands("hvdgrab-bench")), ids=str)
def test_the_commands_of_the_benchmarks_parse(page, words):
    if "--help" in words or not words:
        return
    examples = [word if word != "NAME" else "digits" for word in words]
    if examples != ["convergence"]:
        assert isinstance(bench_parser().parse_args(examples), argparse.Namespace)


def test_every_command_and_option_is_described():
    named = {words[0] for _, words in commands("hvdgrab-launch") if words}
    assert set(LAUNCH.commands) - {"run"} <= named
    daemons = {words[1] for _, words in commands("hvdgrab-launch") if words[:1] == ["daemon"]}
    assert set(LAUNCH.commands["daemon"].commands) <= daemons
    text = "\n".join(TEXTS.values())
    for name, command in LAUNCH.commands.items():
        options = [entry.opts for entry in command.params if entry.param_type_name == "option"]
        assert [one for one in options if not any(re.search(rf"{word}[ `]", text) for word in one)] == [], name
    assert {words[0] for _, words in commands("hvdgrab-bench") if words} >= {"overhead", "memory", "convergence", "simulate"}


def test_the_make_targets_exist():
    targets = sorted({words[0] for _, words in commands("make") if words})
    assert {"quickstart", "setup", "test"} <= set(targets)
    subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, timeout=30, check=True)


def test_the_modules_that_are_run_exist():
    modules = {name for text in TEXTS.values() for name in re.findall(r"python -m ([a-z_]+(?:\.[a-z_0-9]+)*)", text)}
    assert {"hvdgrab.report", "hvdgrab.server", "launcher.bootstrap"} <= modules
    assert [name for name in sorted(modules) if importlib.util.find_spec(name) is None] == []


def test_the_batch_scripts_exist():
    scripts = {word for _, words in commands("sbatch") for word in words if word.endswith(".sh")}
    assert len(scripts) >= 3
    assert [name for name in sorted(scripts) if not (ROOT / name).exists()] == []


# --- what is named -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", TEXTS)
def test_the_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        if anchor:
            assert anchor in headings(path.read_text()), target


@pytest.mark.parametrize("page", TEXTS)
def test_the_files_it_names_exist(page):
    named = re.findall(r"`((?:configs|docs|hvdgrab|launcher|slurm|tests|\.ci)/[\w./-]*)`", TEXTS[page])
    assert [name for name in named if not (ROOT / name).exists()] == []
    for name in re.findall(r"`(\w+\.yaml)`", TEXTS[page]):
        assert (ROOT / "configs" / name).exists() or name in ("spec.yaml", "daemon.yaml", "bad.yaml"), name


def test_every_ready_made_job_and_page_is_listed():
    assert {path.name for path in (ROOT / "configs").glob("*.yaml")} <= set(re.findall(r"`(\w+\.yaml)`", TEXTS["docs/yaml.md"]))
    assert {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")} <= set(re.findall(r"\]\((docs/\w+\.md)\)", README))


def test_the_readme_takes_three_minutes():
    assert len(README.splitlines()) <= 150


def test_the_orders_are_those_that_exist():
    from hvdgrab.config import ORDERS

    table = TEXTS["docs/orders.md"].split("## The rules")[1].split("\n\n")[2]
    first_cells = "\n".join(row.split("|")[1] for row in table.splitlines())
    assert set(re.findall(r"`([a-z-]+)`", first_cells)) == set(ORDERS)


def test_the_columns_it_names_exist():
    from hvdgrab.report.metrics import FIELDS

    text = TEXTS["docs/training.md"].split("| in `metrics.jsonl` |")[1].split("##")[0]
    columns = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
    assert {name for cell in columns for name in re.findall(r"\w+", cell)} == FIELDS
