from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
import yaml

from launcher.errors import LauncherError
from launcher.spec import schema
from tests.launcher.helpers import CHECKOUT, load_text
from tests.launcher.spec.test_sections import EVERYTHING

VALIDATOR = jsonschema_rs.validator_for(json.loads(schema.text()))
CONFIGS = sorted((CHECKOUT / "configs").glob("*.yaml"))


def both(data: Any) -> tuple[bool, bool]:
    """Whether the loader takes a document, and whether the schema does."""
    try:
        load_text(json.dumps(data), "job.yaml", default_name="n")
    except LauncherError:
        return False, VALIDATOR.is_valid(data)
    return True, VALIDATOR.is_valid(data)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_ready_made_job_fits(path: Any) -> None:
    assert [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(path.read_text()))] == []


def test_a_document_with_every_section_fits() -> None:
    data = yaml.safe_load(EVERYTHING.replace("1:30:00", "'1:30:00'"))
    assert both(data) == (True, True)


@pytest.mark.parametrize(
    "data",
    [
        {"command": "python x"},
        {"command": ["x", 1, True, 0.5]},
        {"command": "x", "env": {"A": 1, "B": True}},
        {"command": "x", "resources": None, "slurm": None, "grab": None, "variants": None, "depends_on": None},
        {"command": "x", "resources": {"time_limit": "90m", "hosts": "n[1-2]:2"}},
        {"command": "x", "resources": {"time_limit": None, "hosts": ["a"], "ssh": {"options": ["A=b"], "port": None}}},
        {"command": "x", "grab": {"compression": "topk", "reorder": 2, "layers": ["a.*"]}},
        {"command": "x", "grab": {"compression": {"kind": "sketch", "width": 8}, "reorder": {"every": 2}}},
        {"command": "x", "restart": {"failure": "unlimited", "hang": 0, "backoff": 0, "min_ranks": None}},
        {"command": "x", "checkpoint": {"signal": "SIGTERM"}, "depends_on": "a"},
        {"command": "x", "checkpoint": {"signal": None}, "depends_on": ["a", "b"]},
        {"command": "x", "variants": {"order": ["rr"], "grab": {"seed": [1]}}},
        {"command": "x", "slurm": {"prologue": "a\nb", "exclude": ["n1"], "memory": "8GiB", "partition": 7}},
        {"command": "x", "network": {"ucx_devices": ["a"], "ucx_transports": "rc,sm", "horovod": {"CYCLE_TIME": 1}}},
        {"command": "x", "backend": {"extra_args": ["-v", 1], "mpirun": None}},
    ],
)
def test_what_the_loader_takes_the_schema_takes(data: Any) -> None:
    assert both(data) == (True, True)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"comand": "x"},
        {"command": "x", "resources": {"rank": 2}},
        {"command": "x", "resources": {"time_limit": 90}},
        {"command": "x", "resources": {"ranks": "many"}},
        {"command": "x", "restart": {"failure": -1}},
        {"command": "x", "grab": {"order": "best"}},
        {"command": "x", "slurm": {"memory": "8G"}},
        {"command": "x", "checkpoint": {"signal": "KILL"}},
        {"command": "x", "version": 2},
    ],
)
def test_what_is_plainly_wrong_both_refuse(data: Any) -> None:
    assert both(data) == (False, False)


def test_every_setting_with_words_has_them_in_the_schema() -> None:
    document = json.loads(schema.text())
    found = document["$defs"]["RestartSettings"]["properties"]["hang_after"]["description"]
    assert found == "An attempt hangs if the training makes no progress for this long; null: it never hangs."
    assert all("description" in node for section in document["$defs"].values() for node in section["properties"].values())
    assert all("description" in node for name, node in document["properties"].items()), "every section says what it is"
