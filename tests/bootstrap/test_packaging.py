"""`pip install .` in an environment that has its own torch: nothing of it is changed, and what must travel is there."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.bootstrap.conftest import ROOT

KEPT = ("hvdgrab", "launcher", "configs", "docs", "slurm", "pyproject.toml", "setup.py", "MANIFEST.in", "LICENSE", "README.md")


def pip(*arguments: str | Path, python: str | Path = sys.executable) -> None:
    done = subprocess.run([python, "-m", "pip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by way of the sdist, so that what the sdist lacks would be missing."""
    work = tmp_path_factory.mktemp("packaging")
    for name in KEPT:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, work / name)
    build = "from setuptools import build_meta; build_meta.build_sdist('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=work, check=True, capture_output=True)
    (sdist,) = (work / "dist").glob("*.tar.gz")
    pip("wheel", "--no-deps", "--no-build-isolation", "-w", work / "wheels", sdist)
    return next((work / "wheels").glob("hvdgrab-*.whl"))


def test_jobs_and_batch_scripts_travel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("configs", "slurm"):
        here = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}
        assert here, f"{folder}/ is empty"
        assert {f"launcher/_shipped/{path.as_posix()}" for path in here} <= names
    assert {"launcher/bootstrap/constraints.txt", "launcher/bootstrap/find_python.sh"} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "docs/", "launcher/_shipped/docs/")) for name in names)


def test_installing_changes_no_torch(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    site = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    for name in ("torch", "horovod", "mpi4py"):
        info = site / f"{name}-0.0.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.1\n")
        (info / "RECORD").write_text("")
    (site / "outer.pth").write_text(sysconfig.get_path("purelib") + "\n")  # the light dependencies, and pip itself
    before = set(site.iterdir())
    pip("install", "--no-index", "--ignore-installed", "--no-deps", wheel, python=python)
    pip("install", "--no-index", wheel, python=python)  # with dependencies: all are there, so nothing else is fetched
    fresh = {path.name for path in set(site.iterdir()) - before}
    assert fresh <= {"hvdgrab", "launcher", "__pycache__"} | {name for name in fresh if name.startswith("hvdgrab-")}
    code = "from importlib.metadata import version as v; print(v('torch'), v('horovod'), v('mpi4py'))"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["0.0.1"] * 3
    shipped = list((site / "launcher" / "_shipped" / "configs").iterdir())
    assert shipped


def test_nothing_heavy_is_a_dependency(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = next(archive.read(name).decode() for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    required = [line.split()[1] for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line]
    names = {requirement.split(">")[0].split("<")[0].split("=")[0].lower() for requirement in required}
    assert names == {"fastapi", "numpy", "psutil", "pydantic", "pyyaml", "rich", "typer", "uvicorn"}
