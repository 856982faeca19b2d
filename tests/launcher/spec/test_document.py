from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import SpecError
from launcher.spec.document import MAX_BYTES, Node, parse


def test_json_escapes_of_large_characters() -> None:
    assert parse(json.dumps(["🙂", "\udcff"]), "f").content == [Node("🙂", 1, "f"), Node("\udcff", 1, "f")]


def fault(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse(text, "f")
    return str(caught.value)


def test_lines_and_texts_are_kept() -> None:
    root = parse("a: 010\nb:\n  - 'x'\n  - y\n", "f")
    assert isinstance(root.content, dict)
    assert (root.content["a"].content, root.content["a"].line, root.content["a"].plain) == ("010", 1, True)
    items = root.content["b"].content
    assert isinstance(items, list)
    assert [(item.content, item.line, item.plain) for item in items] == [("x", 3, False), ("y", 4, True)]
    assert root.content["b"].line == 2, "the line of the key, where a person looks"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "f:3: the key 'a' is given twice, first in line 1"),
        ("a: {b: 1, b: 2}", "f:1: the key 'b' is given twice"),
        ("a: 1\n---\nb: 2\n", "f:2: a second document starts here"),
        ("a: !!python/name:os.system x", "f:1: tags are not supported"),
        ("a: &x 1\n<<: *x\n", "f:2: merge keys"),
        ("? [a]\n: 1\n", "f:1: a key must be a word"),
        ("a: *nowhere\n", "f:1: *nowhere is not defined before"),
        ("a: &x [*x]\n", "f:1: *x refers to a value that it is itself part of"),
        ("a: [1\n", "not valid YAML"),
        ("a: \"\\UFFFFFFFF\"\n", "not valid YAML"),
        ("a: 1\n\x00\n", "f:2: the character"),
        ("", "the file is empty"),
        ("# nothing\n", "the file is empty"),
        ("a: " + "[" * 40 + "]" * 40, "nested more than"),
        ("[" * 100_000, "nested more than"),
        ("a: " + "x" * MAX_BYTES, "larger than 1 MiB"),
    ],
)
def test_refused_with_its_line(text: str, message: str) -> None:
    assert message in fault(text)


def test_aliases_cannot_grow_without_bound() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [" + ",".join([f"*a{n - 1}"] * 10) + "]" for n in range(1, 9)]
    assert "more than 50000 values" in fault("\n".join(lines))


@given(st.text(alphabet="ab:-[]{}&*!|>'\"%@#,?\n \t0\\~<", max_size=60))
def test_any_text_is_a_tree_or_an_error_with_a_place(text: str) -> None:
    try:
        assert isinstance(parse(text, "f"), Node)
    except SpecError as error:
        assert all(problem.source == "f" for problem in error.problems)
