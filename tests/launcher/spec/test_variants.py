from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from launcher.errors import SpecError
from launcher.spec.loader import Source, load
from launcher.spec.model import Spec
from launcher.spec.variants import expand
from tests.launcher.helpers import load_all_text, load_text

MATRIX = "command: x\nvariants:\n  order: [reshuffle, rr, cd-grab]\n  seed: [0, 1, 2]\n"


def jobs(text: str, *overrides: str) -> list[str]:
    return [job.name for job in load_all_text(text, "job.yaml", overrides, default_name="demo")]


def fault(text: str, *overrides: str) -> str:
    with pytest.raises(SpecError) as caught:
        load_all_text(text, "job.yaml", overrides, default_name="demo")
    return str(caught.value)


def test_every_combination_is_a_job_of_one_group() -> None:
    specs = load_all_text(MATRIX, "job.yaml", default_name="demo")
    assert [(job.grab.order, job.grab.seed) for job in specs] == [
        (order, seed) for order in ("reshuffle", "rr", "cd-grab") for seed in (0, 1, 2)
    ]
    assert specs[3].name == "demo-order-rr-seed-0"
    assert {job.group for job in specs} == {"demo"}
    assert not any(job.variants for job in specs)
    assert len({job.sha256 for job in specs}) == 9


def test_a_job_of_a_group_is_frozen_as_a_job_of_its_own() -> None:
    job = load_all_text(MATRIX, "job.yaml", default_name="demo")[4]
    assert load_text(job.frozen_text(), "spec.yaml") == job


def test_a_file_without_variants_is_one_job(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("command: x\n")
    (found,) = load(Source.of_file(tmp_path / "one.yaml"))
    assert (found.name, found.group) == ("one", None)


def test_what_the_combinations_are() -> None:
    whole = Spec.model_validate({**yaml.safe_load(MATRIX), "name": "demo", "command": ["x"]})
    assert expand(whole)[0] == ("order-reshuffle-seed-0", {"grab.order": "reshuffle", "grab.seed": 0})


def test_values_keep_the_meaning_that_they_have_in_their_section() -> None:
    text = 'command: x\nvariants:\n  env.LEVEL: [010, on, "a b"]\n'
    specs = load_all_text(text, "job.yaml", default_name="n")
    assert [job.env for job in specs] == [{"LEVEL": "010"}, {"LEVEL": "on"}, {"LEVEL": "a b"}]
    assert [job.name for job in specs] == ["n-LEVEL-010", "n-LEVEL-on", "n-LEVEL-a-b"]


def test_whole_sections_and_lists_can_vary() -> None:
    text = "command: x\nvariants:\n  grab.compression: [topk, {kind: sketch, width: 64}]\n  command: [[a, b], [c]]\n"
    specs = load_all_text(text, "job.yaml", default_name="n")
    assert [(job.grab.compression.kind, job.grab.compression.width, job.command) for job in specs] == [
        ("topk", None, ["a", "b"]), ("topk", None, ["c"]), ("sketch", 64, ["a", "b"]), ("sketch", 64, ["c"]),
    ]  # fmt: skip
    assert len({job.name for job in specs}) == 4


def test_names_stay_different_and_short_words_are_not_shared() -> None:
    assert jobs("command: x\nvariants: {env.A: [a b, a-b]}") == ["demo-A-a-b-0", "demo-A-a-b-1"]
    assert jobs("command: x\nvariants: {env.seed: [1], grab.seed: [2]}") == ["demo-env-seed-1-grab-seed-2"]
    assert jobs("command: x\nname: series\ngroup: g\nvariants: {grab: {seed: [7]}}") == ["series-seed-7"]


def test_variants_can_be_set_from_the_command_line() -> None:
    assert jobs(MATRIX, "variants.seed=[5]", "variants.order=[rr]") == ["demo-order-rr-seed-5"]
    assert jobs(MATRIX, "variants={}") == ["demo"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("variants:\n  order: rr", "job.yaml:3: variants.order: must be a list"),
        ("variants:\n  order: []", "job.yaml:3: variants.order: needs 1 to 256 values, not 0"),
        ("variants:\n  seed: [1, 1]", "job.yaml:3: variants.seed: a value stands there twice"),
        ("variants:\n  order: [rr]\n  grab.order: [rr]", "job.yaml:4: variants.grab.order: the same setting as grab.order"),
        ("variants:\n  name: [a]", "job.yaml:3: variants.name: name cannot be varied"),
        ("variants:\n  variants.seed: [1]", "variants cannot be varied"),
        ("variants:\n  grab.sead: [1]", "job.yaml:3: grab.sead: unknown key; did you mean 'seed'?"),
        ("variants:\n  order: [rr, rrr]", "job.yaml:3: grab.order: must be one of reshuffle, rr"),
        ("variants:\n  command.0: [a]", "the way to '0' leads through a list"),
        ("variants: [a]", "job.yaml:2: variants: must be a mapping of names to values"),
        (f"variants: {json.dumps({'seed': list(range(30)), 'grab.passes_per_unit': list(range(30))})}", "more than 512 jobs"),
        (f"variants: {json.dumps({f'env.A{n}': [1] for n in range(17)})}", "17 settings vary; 16 are the most"),
        (f"name: {'n' * 60}\nvariants: {{seed: [1]}}", "is longer than 64 characters: give the file a shorter `name`"),
    ],
)
def test_errors_of_variants_name_the_line(text: str, message: str) -> None:
    assert message in fault(f"command: [x]\n{text}")
