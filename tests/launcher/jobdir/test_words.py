"""One word for one thing: states, causes and names of variables are written in one module each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import launcher
from launcher.jobdir import variables, words

ROOT = Path(launcher.__file__).parent
APART = ("bootstrap/", "jobdir/variables.py", "jobdir/words.py")
FILES = [path for path in sorted(ROOT.rglob("*.py")) if not path.relative_to(ROOT).as_posix().startswith(APART)]
KNOWN = "|".join(words.STATES + words.END_CAUSES)
COMPARED = re.compile(rf'\b(?:state|cause|stop_cause)\b\s*(?:==|!=|in|not in)\s*\(?"(?:{KNOWN})"')


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_words_come_from_their_module(path: Path) -> None:
    text = path.read_text()
    assert not re.findall(r'"HVDGRAB_[A-Z_]*"', text)
    assert not COMPARED.findall(text)


def test_every_variable_has_one_name() -> None:
    names = [value for name, value in vars(variables).items() if name.isupper() and isinstance(value, str) and name != "PREFIX"]
    assert len(names) == len(set(names))
    assert all(name.startswith(variables.PREFIX) for name in names)


def test_every_word_is_one_thing() -> None:
    assert len(set(words.STATES)) == len(words.STATES)
    assert len(set(words.END_CAUSES)) == len(words.END_CAUSES)
    assert set(words.FINAL) | set(words.WAITING) | set(words.UNDER_WAY) == set(words.STATES)
