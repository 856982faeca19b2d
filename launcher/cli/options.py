"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

File = Annotated[str, typer.Argument(metavar="JOB.yaml", help="The job, or the name of a ready-made one, such as quickstart.")]
Overrides = Annotated[list[str], typer.Option("--set", metavar="a.b=c", help="Replace one setting; may be repeated.")]
JobsDir = Annotated[
    str | None, typer.Option("--jobs-dir", metavar="DIR", help="Directory of all jobs [$HVDGRAB_JOBS, else ./jobs].")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, and nothing else there.")]
Job = Annotated[str, typer.Argument(metavar="ID", help="A job's id, a unique beginning of it, or a name (its newest job).")]
Jobs = Annotated[
    list[str],
    typer.Argument(metavar="ID...", help="Ids, unique beginnings, names (the newest job), or groups.", show_default=False),
]
Rank = Annotated[int, typer.Option("--rank", min=0, metavar="R", help="Which rank.")]
Attempt = Annotated[int | None, typer.Option("--attempt", min=1, metavar="N", help="That attempt alone.")]
