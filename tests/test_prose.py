"""No behaviour is decided by the words of a message: what a message means stands in a field or in an exception's class.

A message here is what the launcher and hvdgrab say in their own words: a reason, an error's text.  The output of other programs,
such as SLURM's reasons or an MPI's banner, has no fields: it is matched by tables at the edge, which are listed below.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.house import ROOT, files

WORDS = {"reason", "message", "complaint", "fault", "detail", "sentence", "strerror", "args", "problem", "problems"}
"""Names of variables and fields that hold a message; ``args`` are an exception's."""
ERRORS = {"error", "err", "exc", "exception", "fault"}
"""Names of exceptions, beside those that an ``except`` clause names."""
TAKES_APART = {
    "startswith", "endswith", "split", "rsplit", "partition", "rpartition", "replace", "removeprefix", "removesuffix",
    "find", "rfind", "index", "rindex", "count",
}  # fmt: skip
"""Methods of text that look for words in it."""
PATTERNS = {"search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn"}
"""Functions and methods of regular expressions."""
CHANGES = {"lower", "upper", "casefold", "strip", "lstrip", "rstrip", "splitlines", "decode", "title"}
"""Methods of text whose result is still the message."""

ALLOWED = {
    ("launcher/attempt/remote.py", "_no_answer"): "what another host's shell and Python printed: programs that have no fields",
    ("launcher/cli/texts.py", "state_text"): "layout: a reason that begins with the word of the state does not get it twice",
    ("launcher/daemon/spool.py", "_refuse"): "layout: the message names the file by its new place, and on one line",
    ("launcher/daemon/spool.py", "_submit"): "layout: the message names the file on one line",
}
"""By file and function, why it may look into a message."""


class Finder(ast.NodeVisitor):
    """Collects the places of a module where words of a message decide something."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int, str]] = []
        self._functions: list[str] = []
        self._errors: list[str] = []
        self._variables: list[set[str]] = [set()]
        """Names to which a message was assigned, by function."""

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._functions.append(node.name)
        self._variables.append(set())
        self.generic_visit(node)
        self._variables.pop()
        self._functions.pop()

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._errors.append(node.name or "")
        self.generic_visit(node)
        self._errors.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        if self._is_message(node.value):
            self._variables[-1] |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        for left, operator, right in zip(sides, node.ops, sides[1:], strict=False):
            contains = isinstance(operator, ast.In | ast.NotIn) and self._is_message(right)
            equals = (self._is_message(left) and _texts(right)) or (self._is_message(right) and _texts(left))
            if contains or (equals and isinstance(operator, ast.In | ast.NotIn | ast.Eq | ast.NotEq)):
                self._note(node)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute):
            inside = node.func.attr in TAKES_APART and self._is_message(node.func.value) and not _only_space(node.args)
            pattern = node.func.attr in PATTERNS and any(self._is_message(argument) for argument in node.args)
            if inside or pattern:
                self._note(node)
        self.generic_visit(node)

    def visit_Match(self, node: ast.Match) -> None:
        if self._is_message(node.subject):
            self._note(node)
        self.generic_visit(node)

    def _note(self, node: ast.expr | ast.stmt) -> None:
        self.found.append((self._functions[-1] if self._functions else "", node.lineno, ast.unparse(node)))

    def _is_message(self, node: ast.expr) -> bool:
        match node:
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in WORDS:
                return True
            case ast.Name(id=name) if name in self._variables[-1]:
                return True
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]) if name in (*ERRORS, *self._errors):
                return True
            case ast.JoinedStr(values=values):
                return any(isinstance(value, ast.FormattedValue) and self._is_message(value.value) for value in values)
            case ast.Call(func=ast.Name(id="str" | "repr"), args=[argument]):
                return self._is_message(argument)
            case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in CHANGES:
                return self._is_message(value)
            case ast.Subscript(value=ast.Attribute() as value):
                return self._is_message(value)
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_message(body) or self._is_message(orelse)
            case ast.FormattedValue(value=value):
                return self._is_message(value)
            case ast.BoolOp(values=values):
                return any(self._is_message(value) for value in values)
            case ast.NamedExpr(value=value):
                return self._is_message(value)
        return False


def _texts(node: ast.expr) -> bool:
    """Whether an expression is a text, or holds texts."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_texts(element) for element in node.elts)
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(node.value.strip())


def _only_space(arguments: list[ast.expr]) -> bool:
    """Whether nothing but space is looked for, such as the end of a line: the message is laid out, not read."""
    first = arguments[0] if arguments else None
    return first is None or (isinstance(first, ast.Constant) and isinstance(first.value, str) and not first.value.strip())


def found_in(source: str) -> list[tuple[str, int, str]]:
    """Function, line and text of each place in a module's source."""
    finder = Finder()
    finder.visit(ast.parse(source))
    return finder.found


def all_found() -> Iterator[tuple[str, str, int, str]]:
    """The same of the whole tree, with the file before."""
    for path in (*files("launcher"), *files("hvdgrab")):
        for place in found_in(path.read_text()):
            yield path.relative_to(ROOT).as_posix(), *place


def test_no_behaviour_is_decided_by_the_words_of_a_message() -> None:
    wrong = [
        f"{file}:{line}: {text}" for file, function, line, text in all_found() if (file, function) not in ALLOWED
    ]
    assert wrong == []


def test_exceptions_are_those_that_are_needed() -> None:
    assert ALLOWED.keys() <= {(file, function) for file, function, _, _ in all_found()}


@pytest.mark.parametrize(
    "line",
    [
        "if 'outside' in end.reason: pass",
        "if 'no daemon runs' not in message: pass",
        "if 'x' in str(error): pass",
        "if error.args[0] == 'x': pass",
        "if end.reason == 'x' or end.reason in ('y', 'z'): pass",
        "_, _, rest = str(error).partition(': ')",
        "over.reason.replace('runs', 'was to run')",
        "error.message.lower().startswith('x')",
        "re.search('x', end.reason)",
        "WORD.match(str(error))",
        "said = str(error)\nif 'x' in said: pass",
        "try: pass\nexcept OSError as broken:\n    if 'x' in str(broken): pass",
        "match end.reason:\n    case 'x': pass",
        "if 'x' in (end.reason or ''): pass",
        "if (said := end.reason) and 'x' in f'{said}: {end.reason}': pass",
    ],
)
def test_decisions_by_words_are_found(line: str) -> None:
    assert found_in(line)


@pytest.mark.parametrize(
    "line",
    [
        "if end.cause == PREEMPTION: pass",
        "if end.reason is None or not end.reason: pass",
        "print(end.reason.replace('\\n', ' ').splitlines()[0])",
        "if 'x' in answer.stdout: pass",
        "if error.errno == 28: pass",
        "raise UsageError(f'{error}; start it again')",
    ],
)
def test_fields_and_layout_are_no_decisions_by_words(line: str) -> None:
    assert not found_in(line)
