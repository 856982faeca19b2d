from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import LauncherError, SpecError, UsageError
from launcher.spec.loader import Source, load
from launcher.spec.model import Spec
from tests.launcher.helpers import load_text, spec

FULL = """\
version: 1
name: full
command: [python, -m, hvdgrab.examples.digits, --epochs, 10]
workdir: /tmp
env:
  LEVEL: 010
  FLAG: on
  TIME: 1:30:00
  NOTHING: ''
secrets: [API_TOKEN]
resources:
  ranks: 4
  oversubscribe: true
  allow_root: false
  binding: core
  threads_per_rank: 2
backend:
  kind: mpirun
  extra_args: [--mca, btl_tcp_if_include, eth0]
grab:
  order: cd-grab
  seed: 3
  stall_warning: 10
"""


def fault(text: str, *overrides: str) -> str:
    with pytest.raises(SpecError) as caught:
        spec(text, *overrides)
    return str(caught.value)


def test_full_spec() -> None:
    loaded = spec(FULL)
    assert loaded.command == ["python", "-m", "hvdgrab.examples.digits", "--epochs", "10"]
    assert loaded.env == {"LEVEL": "010", "FLAG": "on", "TIME": "1:30:00", "NOTHING": ""}, "exactly as written"
    assert (loaded.resources.ranks, loaded.resources.threads_per_rank, loaded.resources.binding) == (4, 2, "core")
    assert (loaded.grab.order, loaded.grab.seed, loaded.grab.stall_warning) == ("cd-grab", 3, 10.0)


def test_defaults_and_empty_sections() -> None:
    loaded = spec("command: python train.py 'two words' $HOME `x`\nenv:\ngrab: ~\n")
    assert loaded.command == ["python", "train.py", "two words", "$HOME", "`x`"]
    assert (loaded.name, loaded.version, loaded.env, loaded.secrets) == ("demo", 1, {}, [])
    assert (loaded.resources.ranks, loaded.backend.kind, loaded.resources.binding) == ("auto", "auto", "none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("comand: x", "job.yaml:1: comand: unknown key; did you mean 'command'?"),
        ("command: x\nresources:\n  rank: 2", "job.yaml:3: resources.rank: unknown key; did you mean 'ranks'?"),
        ("command: x\ngrab:\n  sead: 2", "job.yaml:3: grab.sead: unknown key; did you mean 'seed'?"),
        ("command: x\ngrab: {compression: {kin: none}}", "grab.compression.kin: unknown key; did you mean 'kind'?"),
        ("command: x\ngrab: {compression: {kind: topk, width: 3}}", "kind 'topk' has no option width; it takes ratio, k, dtype"),
        ("command: x\ngrab:\n  layers: []", "job.yaml:3: grab.layers: must be a list of one or more patterns"),
        ("command: x\ngrab: {balance: {damping: 0}}", "grab.balance.damping: must be greater than 0"),
        ("command: x\nzzzzzzz: 1", "valid here: version, name, command"),
        ("name: x", "job.yaml: command: is missing"),
        ("command: ''", "command: must not be empty"),
        ("command: []", "command: must not be empty"),
        ('command: "python \'x"', "job.yaml:1: command: cannot be split into arguments"),
        ("command: x\nresources: {ranks: 0}", "resources.ranks: must be a whole number from 1 to"),
        ("command: x\nresources: {ranks: two}", "resources.ranks: must be a whole number from 1 to"),
        ("command: x\nresources: {ranks: true}", "resources.ranks: must be a whole number from 1 to"),
        ("command: x\nresources: {ranks: 1.5}", "resources.ranks: must be a whole number"),
        ("command: x\nresources: {ranks: 010}", "resources.ranks: 010 is octal to some YAML readers"),
        ("command: x\nresources: {oversubscribe: on}", "resources.oversubscribe: must be true or false (given: 'on')"),
        ("command: x\nresources: {oversubscribe: 1}", "resources.oversubscribe: must be true or false (given: 1)"),
        ("command: x\nresources: {binding: cores}", "resources.binding: must be one of none, core, socket or numa"),
        ("command: x\nresources: [1]", "job.yaml:2: resources: must be a mapping of settings"),
        ("command: x\ngrab: {seed: '7'}", "grab.seed: must be a whole number (given: '7')"),
        ("command: x\ngrab: {seed: true}", "grab.seed: must be a whole number (given: true)"),
        ("command: x\ngrab: {seed: -1}", "grab.seed:"),
        ("command: x\ngrab: {order: cdgrab}", "grab.order: must be one of reshuffle, rr"),
        ("command: x\nversion: 2", "version: must be one of 1 (given: 2)"),
        ("command: x\nname: ../evil", "job.yaml:2: name: a name consists of"),
        ("command: x\nname: ..", "name: a name consists of"),
        ("command: x\nname: a/b", "name: a name consists of"),
        ("command: x\nname: ''", "name: a name consists of"),
        ("command: x\nenv: {A: }", "env.A: nothing is YAML's null: put it in quotes"),
        ("command: x\nenv: {A: null}", "env.A: null is YAML's null"),
        ("command: x\nenv: {A: [1]}", "env.A: must be text"),
        ("command: x\nenv: [A]", "env: must be a mapping of names to values"),
        ("command: x\nenv: {A B: c}", "env.A B: a variable's name consists of"),
        ("command: x\nenv:\n  HVDGRAB_JOB_ID: c", "job.yaml:3: env.HVDGRAB_JOB_ID: HVDGRAB_JOB_ID is set by the launcher"),
        ("command: x\nenv: {OMPI_MCA_btl: tcp}", "cannot be set here; options for Open MPI go to backend.extra_args"),
        ("command: x\nenv: {PMI_RANK: 1}", "cannot be set here"),
        ("command: x\nenv: {PMIX_RANK: 1}", "cannot be set here"),
        ("command: x\nenv: {SLURM_NTASKS: 1}", "cannot be set here"),
        ("command: x\nenv: {TOKEN: a}\nsecrets: [TOKEN]", "TOKEN is under env and under secrets"),
        ("command: x\nsecrets: [SLURM_JOBID]", "secrets.0: SLURM_JOBID is set by"),
        (
            "command: x\nenv: {OMP_NUM_THREADS: 2}\nresources: {threads_per_rank: 3}",
            "resources.threads_per_rank sets the same thing",
        ),
        ('command: [x, "a\\0b"]', "command.1: holds a zero byte"),
        ('command: [x, "\\ud800"]', "command.1: holds '\\ud800', half of a character pair"),
        ("command: [x, " + "y" * 140_000 + "]", "command.1: is 140000 bytes long; the system takes"),
        ("- a\n- b\n", "job.yaml:1: a job is a mapping"),
        ("just text", "a job is a mapping"),
    ],
)
def test_wrong_specs_name_line_path_and_remedy(text: str, message: str) -> None:
    assert message in fault(text)


def test_all_faults_at_once_in_the_order_of_the_file() -> None:
    text = fault("command: x\nresources:\n  ranks: 0\n  bindin: core\ngrab: {seed: x}\n")
    assert [line.split(": ")[0] for line in text.splitlines()] == ["job.yaml:3", "job.yaml:4", "job.yaml:5"]


def test_values_of_variables_and_arguments_are_never_repeated_in_errors() -> None:
    text = fault("command: [x, 'hunter2\\0']\nenv: {A: [hunter2]}\nsecrets: ['hunter2 ']".replace("'hunter2\\0'", '"hunter2\\0"'))
    assert text.count("\n") == 2
    assert "hunter2" not in text


def test_overrides_win_and_are_applied_in_order() -> None:
    loaded = spec(FULL, "resources.ranks=2", "resources.ranks=3", "grab.order=rr", "env.NEW=a=b: [c", "backend.extra_args=[]")
    assert (loaded.resources.ranks, loaded.grab.order, loaded.env["NEW"], loaded.backend.extra_args) == (3, "rr", "a=b: [c", [])


def test_override_of_a_section_that_is_not_there() -> None:
    assert spec("command: x", "resources.ranks=2").resources.ranks == 2
    assert spec("command: x\nresources:\n", "resources.ranks=2").resources.ranks == 2


def test_override_of_text_is_taken_as_it_stands() -> None:
    loaded = spec("command: x", "env.A=", "env.B= 010 ", "env.C=null", "command=python -c 'print(1)'", "name=7")
    assert loaded.env == {"A": "", "B": " 010 ", "C": "null"}
    assert (loaded.command, loaded.name) == (["python", "-c", "print(1)"], "7")


def test_override_carries_bytes_that_are_no_text() -> None:
    assert spec("command: x", "env.A=\udcff").env == {"A": "\udcff"}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("resources.ranks", "--set resources.ranks: must look like a.b=value"),
        ("=3", "must look like a.b=value"),
        ("a..b=3", "must look like a.b=value"),
        ("resources.rank=3", "--set resources.rank=3: resources.rank: unknown key; did you mean 'ranks'?"),
        ("resources.ranks=none", "--set resources.ranks=none: resources.ranks: must be a whole number"),
        ("resources.ranks=[1", "--set resources.ranks=[1: resources.ranks: not valid YAML"),
        ("resources.ranks=007", "--set resources.ranks=007: resources.ranks: 007 is octal"),
        ("command.0=x", "the way to '0' leads through a list"),
        ("name.x=1", "the way to 'x' leads through 'n', which holds no settings"),
        ("network.interfaces=eth0", "network.interfaces: unknown key; did you mean 'interface'?"),
        (".".join("a" * 30) + "=1", "more than 16 levels deep"),
    ],
)
def test_errors_of_overrides_name_the_option(option: str, message: str) -> None:
    assert message in fault("name: n\ncommand: [x]", option)


def test_a_fault_that_quotes_a_long_word_stays_readable() -> None:
    assert len(fault("command: x\na: !" + "x" * 100_000)) < 3_000
    assert len(fault("command: x\n" + "k" * 100_000 + ": 1")) < 3_000


def test_override_does_not_reach_through_an_alias() -> None:
    text = "command: &c [x]\nbackend: {extra_args: *c}"
    loaded = spec(text, "backend.extra_args=[y]")
    assert (loaded.command, loaded.backend.extra_args) == (["x"], ["y"])


HOSTILE = ["", " ", "'", '"', "$HOME", "`id`", "a\nb", "\t", "\\", "é漢🙂", "\udcff", "~", "null", "010", "on", "-", "#x", "{}"]


@given(st.lists(st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))))
def test_the_frozen_copy_is_the_same_spec(arguments: list[str]) -> None:
    values = {f"V{index}": value for index, value in enumerate(arguments)}
    first = Spec.model_validate({"name": "n", "command": ["x", *arguments], "env": values, "grab": {"seed": 5}}, strict=True)
    again = load_text(first.frozen_text(), "spec.yaml")
    assert again == first
    assert again.grab.model_fields_set == {"seed"}, "only what the user set reaches the ranks"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml cannot be read: No such file"):
        load(Source.of_file(tmp_path / "none.yaml"))
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(b"command: x\nname: \xff\n")
    with pytest.raises(SpecError, match=r"bad\.yaml:2: not UTF-8 text \(byte 0xff\)"):
        load(Source.of_file(bad))
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (1 << 21))
    with pytest.raises(SpecError, match="larger than 1 MiB"):
        load(Source.of_file(big))


def test_the_name_comes_from_the_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "my-job.yaml", tmp_path / "my job.yaml"
    good.write_bytes(b"\xef\xbb\xbfcommand: x\n")
    bad.write_text("command: x\n")
    assert [job.name for job in load(Source.of_file(good))] == ["my-job"]
    with pytest.raises(SpecError, match="name: is missing, and the file's own name 'my job' will not do"):
        load(Source.of_file(bad))


@given(st.data())
@settings(max_examples=100)
def test_mutated_specs_are_loaded_or_refused_in_words(data: st.DataObject) -> None:
    text = list(FULL)
    pool = st.sampled_from(["\n", " ", ":", "-", "[", "]", "{", "}", "&a ", "*a", "!", "'", '"', "0", "~", "\t", "|", "\x07"])
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 12))] = data.draw(st.lists(pool, max_size=3))
    try:
        load_text("".join(text), "job.yaml", default_name="n")
    except LauncherError as error:
        assert str(error).startswith("job.yaml")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=6), below, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted([*Spec.model_fields, "other"])), VALUES)
def test_any_value_anywhere_is_loaded_or_refused_in_words(section: str, value: Any) -> None:
    document = json.dumps({"command": "x", section: value})
    try:
        load_text(document, "job.yaml", default_name="n")
    except LauncherError as error:
        assert str(error).startswith("job.yaml")
