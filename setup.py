"""Lets configs/ and slurm/ travel in the wheel, as launcher/_shipped/; everything else stands in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("configs", "slurm")


class BuildWithShipped(build_py):
    """build_py, plus a copy of the top-level folders; an editable install uses the checkout's own folders instead."""

    def run(self) -> None:
        """Build as always, then copy."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, "launcher", "_shipped")
        shutil.rmtree(target, ignore_errors=True)  # a file that was renamed must not stay in the next wheel
        for name in SHIPPED:
            shutil.copytree(Path(__file__).parent / name, target / name)


setup(cmdclass={"build_py": BuildWithShipped})
