"""Specs that nobody would write: loaded and planned, or refused in words, without a trace outside the job's directory."""

from __future__ import annotations

import copy
import json
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from launcher.errors import LauncherError
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.plan import preflight
from launcher.plan.planning import make_plan, next_attempt
from launcher.spec.model import Spec, model_in
from tests.launcher.helpers import CHECKOUT, JOB_ID, host, load_all_text, load_text, mpirun
from tests.launcher.spec.test_loader import FULL
from tests.launcher.spec.test_schema import VALIDATOR
from tests.launcher.spec.test_sections import EVERYTHING

PATIENCE = 20
"""Seconds after which an input counts as a hang; the slowest takes a few hundredths."""
HOSTS = [
    host(cwd="/"),
    host(cwd="/", root=True, cores=1),
    host(cwd="/", cores=64, mpirun=mpirun("mpich", 5, 0), horovodrun=None),
    host(cwd="/", mpirun=None),
]
SEEDS = [FULL, EVERYTHING, *(path.read_text() for path in sorted((CHECKOUT / "configs").glob("*.yaml")))]
WRITES = {
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "subprocess.Popen",
    "os.exec",
    "socket.connect",
}

watching = False
seen: list[str] = []


def _audit(event: str, args: tuple[Any, ...]) -> None:
    """Note what writes, starts or connects, while an input is looked at; the interpreter keeps the hook to its end."""
    if not watching:
        return
    writing = event == "open" and isinstance(args[1], str) and any(letter in args[1] for letter in "wxa+")
    if writing or event in WRITES:
        seen.append(f"{event} {args[:2]!r}")


sys.addaudithook(_audit)


@contextmanager
def watched() -> Iterator[None]:
    """Within it nothing may be written, started or connected to, and nothing may hang."""
    global watching

    def hang(number: int, frame: Any) -> None:
        raise AssertionError(f"no answer within {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, hang)
    signal.alarm(PATIENCE)
    watching = True
    try:
        yield
    finally:
        watching = False
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert not seen, seen


def look(text: str, number: int = 0) -> bool:
    """Load, plan and check one document; whether it could be planned."""
    job, plans = JobPaths(Path("/jobs") / JOB_ID), []
    with watched():
        try:
            specs = load_all_text(text, "job.yaml", default_name="demo")
            plans = [(spec, make_plan(spec, HOSTS[number % len(HOSTS)], job)) for spec in specs[:3]]
            for spec, plan in plans:
                _consistent(spec, plan, job)
                preflight.check(plan, {"PATH": "/usr/bin:/bin"}, spec)
        except LauncherError as error:
            assert 0 < len(str(error).strip()) < 200_000
            assert error.exit_code == 2
    return bool(plans)


def _consistent(spec: Spec, plan: Plan, job: JobPaths) -> None:
    assert load_text(spec.frozen_text(), "spec.yaml") == spec
    assert Plan.from_json(plan.to_json()) == plan
    assert next_attempt(plan, 1) == plan
    assert all(Path(name).is_relative_to(job.root) and ".." not in name for name in plan.files)
    users = {word for word in plan.job.command[1:] if len(word) > 40}
    assert not users & set(plan.argv), "the user's words are on no command line"


TEXTS = ["", "~", "null", "on", "010", "1_000", "0x10", "1e3", ".5", "1:30:00", "1:30", "90m", "8GiB", "auto", "unlimited", "-1",
         "a b", "$(id)", "../../x", "/etc/passwd", "n[1-3]:2",
         "n[1-", "é漢🙂", "a\nb", "'", '"', "USR1", "rr", "cd-grab", "x" * 300]  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, 2, -1, 3.5, 10**12, 2**70, 1e308]),
    st.sampled_from(TEXTS),
    st.text(max_size=6),
)
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from(TEXTS), below, max_size=3),
    max_leaves=5,
)


def section(model: type[BaseModel]) -> st.SearchStrategy[Any]:
    """A mapping of some of a section's settings, with values that may fit or not."""
    fields = {}
    for name, field in model.model_fields.items():
        below = model_in(field.annotation)
        choices = (
            [section(below), VALUES] if below is not None else [VALUES, st.just(field.get_default(call_default_factory=True))]
        )
        fields[name] = st.one_of(*choices)
    plain = {name: value.filter(_is_plain) for name, value in fields.items()}
    return st.fixed_dictionaries({}, optional=plain)


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


DOCUMENTS = st.builds(
    lambda data, command: {"command": command, **data}, section(Spec), st.sampled_from(["x", ["python", "t.py"]])
)


def check_document(data: dict[str, Any]) -> None:
    text = json.dumps(data)
    look(text, len(text))
    with watched():
        try:
            load_text(text, "job.yaml", default_name="demo")
        except LauncherError:
            return
    assert VALIDATOR.is_valid(json.loads(text)), "what the loader takes the schema takes"


SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@given(DOCUMENTS)
@settings(max_examples=40, deadline=None, suppress_health_check=SLOW)
def test_invented_specs_a_sample(data: dict[str, Any]) -> None:
    check_document(data)


@pytest.mark.soak
@given(DOCUMENTS)
@settings(max_examples=3_000, deadline=None, suppress_health_check=SLOW)
def test_invented_specs(data: dict[str, Any]) -> None:
    check_document(data)


PIECES = ["\n", "  ", ":", ": ", "- ", "[", "]", "{", "}", "&a ", "*a", "!!x ", "'", '"', "0", "~", "\t", "|\n", "\x07", "#",
          "---\n", "<<: *a\n",
          "? ", "\ud800", "\u2028", "\r", "%YAML 1.1\n", "é", ",", "1:30", "null", "unlimited", "n[1-9]"]  # fmt: skip


SIMPLE = [None, True, False, 0, 1, 2, -1, 3.5, 10**12, 2**70, [], {}, [None], ["x", "y"], {"a": 1}, *TEXTS]
TREES = [yaml.safe_load(text.replace("1:30:00", "'1:30:00'")) for text in SEEDS]


def changed(dice: random.Random) -> str:
    """One of the real documents with some of its settings removed, renamed or replaced, as JSON, which is YAML."""
    tree = copy.deepcopy(dice.choice(TREES))
    for _ in range(dice.randint(1, 3)):
        node = tree
        while True:
            key = dice.choice(list(node) if isinstance(node, dict) else range(len(node))) if node else None
            if key is None or not isinstance(node[key], dict | list) or not node[key] or dice.random() < 0.2:
                break
            node = node[key]
        if key is None:
            continue
        if isinstance(node, dict) and dice.random() < 0.2:
            node[dice.choice(list(Spec.model_fields) + list(node))] = node.pop(key)
        else:
            node[key] = dice.choice(SIMPLE)
    return json.dumps(tree)


def mutated(dice: random.Random) -> str:
    """One of the real documents with some of its text deleted, doubled, moved or replaced."""
    if dice.random() < 0.5:
        return changed(dice)
    text = dice.choice(SEEDS)
    for _ in range(dice.randint(1, 5)):
        at, length = dice.randrange(len(text) or 1), dice.choice([0, 1, 2, 5, 20])
        piece = text[at : at + length]
        lines = text.split("\n")
        change = dice.randrange(6)
        if change == 0:
            text = text[:at] + text[at + length :]
        elif change == 1:
            text = text[:at] + dice.choice(PIECES) + text[at + length :]
        elif change == 2:
            text = text[:at] + piece * 3 + text[at + length :]
        elif change == 3:
            lines.insert(dice.randrange(len(lines)), dice.choice(lines))
            text = "\n".join(lines)
        elif change == 4:
            lines.pop(dice.randrange(len(lines)))
            text = "\n".join(lines)
        else:
            words = [word for word in text.split() if word]
            text = text.replace(dice.choice(words), dice.choice(TEXTS + words), 1) if words else text
    return text


def check_mutations(count: int, seed: int) -> None:
    dice = random.Random(seed)
    jobs = 0
    for number in range(count):
        text = mutated(dice)
        try:
            jobs += look(text, number)
        except LauncherError:
            raise
        except BaseException as error:
            raise AssertionError(f"seed {seed}, input {number}: {text!r}") from error
    assert count // 20 < jobs < count, f"{jobs} of {count} inputs are jobs: some are, and some are refused"


def test_mutated_jobs_a_sample() -> None:
    check_mutations(200, seed=1)


@pytest.mark.soak
def test_mutated_jobs() -> None:
    check_mutations(7_000, seed=2)
