"""Finding a job's YAML: a file of the user, or one of the ready-made jobs that come with the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from launcher.errors import UsageError

ENDINGS = (".yaml", ".yml")


def shipped_directories() -> list[Path]:
    """Where ready-made jobs lie: in an installed package, or beside the package in a checkout."""
    package = Path(str(files("launcher")))
    return [path for path in (package / "_shipped" / "configs", package.parent / "configs") if path.is_dir()]


def shipped_names() -> list[str]:
    """Names of the ready-made jobs."""
    return sorted({path.stem for folder in shipped_directories() for path in folder.iterdir() if path.suffix in ENDINGS})


def find_spec(wanted: str) -> Path:
    """The file that is meant: the path itself, else a ready-made job called so (``configs/quickstart.yaml`` or ``quickstart``).

    Raises:
        UsageError: where there is none, naming the ready-made ones.
    """
    path = Path(wanted).expanduser()
    if path.is_file():
        return path
    found = _shipped(wanted) if not path.is_absolute() else None
    if found is not None:
        return found
    if path.is_dir():
        raise UsageError(f"{wanted} is a directory; a job is one YAML file")
    if path.exists():
        raise UsageError(f"{wanted} is not a regular file")
    names = ", ".join(shipped_names())
    a_word = len(path.parts) == 1 and not path.suffix  # it may be meant as a command
    what = f"there is no command or file called {wanted!r}" if a_word else f"there is no file {wanted}"
    raise UsageError(what + (f"; ready-made jobs: {names}" if names else ""))


def _shipped(wanted: str) -> Path | None:
    path = Path(wanted)
    if path.parts[:-1] not in ((), ("configs",)) or path.name in ("", ".", ".."):
        return None
    names = [path.name] if path.suffix in ENDINGS else [path.name + ending for ending in ENDINGS]
    candidates = [folder / name for folder in shipped_directories() for name in names]
    return next((candidate for candidate in candidates if candidate.is_file()), None)
