from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bootstrap.conftest import ROOT, Shims

SCRIPT = ROOT / "launcher" / "bootstrap" / "find_python.sh"


def fake(version: str, venv: bool = True) -> str:
    """A Python that tells its version, and whether it has the venv module."""
    return f"""case "$2" in
*version_info*) echo {version} ;;
*ensurepip*) exit {0 if venv else 1} ;;
*executable*) echo "$0" ;;
esac"""


BROKEN = "echo 'pyenv: python3.12: command not found' >&2; exit 127"


def find(folder: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT), *arguments], env={"PATH": str(folder)}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.strip(), done.stderr.strip()


def test_python3_is_taken_where_it_fits(shims: Shims) -> None:
    folder = shims("sh", python3=fake("3.11"), python3_DOT_12=fake("3.12"))
    assert find(folder) == (0, str(folder / "python3"), "")


def test_another_one_is_looked_for_by_running_it(shims: Shims) -> None:
    folder = shims("sh", python3=fake("3.13"), python3_DOT_12=BROKEN, python3_DOT_11=fake("3.11"))
    assert find(folder) == (0, str(folder / "python3.11"), "")


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.9", "3.13", "4.0"])
def test_an_unfit_version_is_one_sentence(shims: Shims, version: str) -> None:
    code, out, err = find(shims("sh", python3=fake(version)))
    assert (code, out) == (1, "")
    assert err.startswith(f"error: hvdgrab needs Python 3.10, 3.11 or 3.12, but python3 is Python {version};")
    assert "\n" not in err


def test_none_at_all_is_one_sentence(shims: Shims) -> None:
    code, out, err = find(shims("sh", python3=BROKEN))
    assert (code, out) == (1, "")
    assert "no working Python found" in err


def test_a_missing_venv_module_is_named_with_its_package(shims: Shims) -> None:
    code, _, err = find(shims("sh", python3=fake("3.11", venv=False)))
    assert code == 1
    assert "apt install python3.11-venv" in err


def test_the_one_that_was_named_is_the_only_one_tried(shims: Shims) -> None:
    folder = shims("sh", python3=fake("3.11"), mine=fake("3.8"))
    assert find(folder, "mine")[0] == 1
    assert find(folder, "python3")[0] == 0


def test_an_environment_that_is_there_keeps_its_python(shims: Shims, tmp_path: Path) -> None:
    folder = shims("sh", python3=fake("3.11"))
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    inside = tmp_path / "venv" / "bin" / "python"
    inside.write_text("#!/bin/sh\n" + fake("3.12"))
    inside.chmod(0o755)
    assert find(folder, "", str(tmp_path / "venv"))[1] == str(inside)


def test_the_real_one_is_found(shims: Shims) -> None:
    code, out, _ = find(shims("sh"), sys.executable)
    assert (code, out) == (0, sys.executable)


def test_the_module_itself_refuses_other_versions(tmp_path: Path) -> None:
    """Run as the oldest syntax would be: the check comes before any import of ours."""
    code = (
        "import sys, runpy; sys.version_info = (3, 9, 1, 'final', 0); sys.argv = ['bootstrap']\n"
        "runpy.run_path('launcher/bootstrap/__main__.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "is Python 3.9; name another one" in done.stderr
