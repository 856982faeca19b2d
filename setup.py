"""Lets configs/ and slurm/ travel in the wheel, as launcher/_shipped/; everything else stands in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = ("configs", "slurm")


class BuildWithShipped(build_py):
    """build_py, plus a copy of the top-level folders; an editable install uses the checkout's own folders instead."""

    def run(self) -> None:
        """Build as always, then copy; what an earlier build left goes, so that no renamed file stays in the next wheel."""
        if self.editable_mode:
            super().run()
            return
        for package in ("hvdgrab", "launcher"):
            shutil.rmtree(Path(self.build_lib, package), ignore_errors=True)
        super().run()
        for name in SHIPPED:
            shutil.copytree(Path(__file__).parent / name, Path(self.build_lib, "launcher", "_shipped", name))


setup(cmdclass={"build_py": BuildWithShipped})
