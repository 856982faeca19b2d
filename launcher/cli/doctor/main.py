"""The command: which looks are made, and the exit code."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.cli.doctor.checks import Check, Report
from launcher.cli.doctor.collect import collect
from launcher.cli.doctor.show import print_report
from launcher.errors import EXIT_FAILED, EXIT_OK, LauncherError
from launcher.spec.model import Spec


def main(file: str | None = None, overrides: Sequence[str] = (), *, slurm: bool = False, as_json: bool = False) -> int:
    """Print the answer.

    Args:
        file: a job whose plan and hosts are tried as well.
        overrides: ``a.b=c`` texts for it.
        slurm: whether SLURM is asked; it is in any case where the job goes there.
        as_json: one JSON document instead of the table.

    Returns:
        The exit code: 0 if all that training needs is there, else 1.
    """
    specs = _load(file, overrides)
    report = collect()
    goes_there = any(spec.backend.kind == "slurm" or spec.slurm is not None for spec in specs)
    further = [*_job(specs), *(_slurm(specs[0] if specs else None) if slurm or goes_there else [])]
    report = Report((*report.checks, *further))
    print_report(report, as_json=as_json)
    return EXIT_OK if report.ok else EXIT_FAILED


def _load(file: str | None, overrides: Sequence[str]) -> list[Spec]:
    if file is None:
        return []
    from launcher.plan.prepare import load

    return load(file, overrides)


def _job(specs: Sequence[Spec]) -> list[Check]:
    if not specs:
        return []
    from launcher.cli.doctor.job import checks

    return checks(specs)


def _slurm(spec: Spec | None) -> list[Check]:
    from launcher.cli.doctor import slurm

    try:
        return slurm.checks(spec)
    except LauncherError as error:
        return [Check("SLURM", "missing", str(error), "`sinfo` by itself shows more")]
