"""Where built wheels wait for the next set-up, outside any checkout, and how two set-ups keep out of each other's way."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from launcher.bootstrap.errors import BootstrapError


@dataclass(frozen=True)
class Key:
    """Everything that a built wheel depends on: two wheels with equal keys may stand in for each other.

    Args:
        package: Name of the package, as in "horovod".
        fields: What it was built of, by name; every field counts for the digest, the short ones show in the name.
    """

    package: str
    fields: Mapping[str, str]

    @property
    def digest(self) -> str:
        """12 hex digits over package and fields; independent of the order in which the fields are given."""
        text = json.dumps([self.package, sorted(self.fields.items())])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def name(self) -> str:
        """A directory name that a person can read: versions first, digest last."""
        shown = [value for value in self.fields.values() if value and len(value) <= 24 and "/" not in value]
        readable = "_".join([self.package, *shown])
        return re.sub(r"[^A-Za-z0-9.+_-]+", "-", readable)[:120] + "_" + self.digest


class Cache:
    """A directory of finished wheels, one sub-directory a key, filled by renaming so that a partial wheel is never seen.

    Args:
        root: The directory; made if missing.

    Raises:
        BootstrapError: It cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            for part in ("wheels", "sdists", "build", "locks", "logs"):
                (root / part).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root / "wheels"):
                pass
        except OSError as error:
            raise BootstrapError(
                f"the cache directory {root} cannot be written ({error.strerror}); name another one: HVDGRAB_CACHE=DIR make setup"
            ) from error

    def find(self, key: Key) -> Path | None:
        """The finished wheel of `key`, or None. A file that is not a whole zip archive counts as none."""
        wheels = sorted((self.root / "wheels" / key.name).glob("*.whl"))
        return next((wheel for wheel in wheels if zipfile.is_zipfile(wheel)), None)

    def discard(self, key: Key) -> None:
        """Forget the wheel of `key`."""
        shutil.rmtree(self.root / "wheels" / key.name, ignore_errors=True)

    def publish(self, key: Key, wheel: Path) -> Path:
        """Copy `wheel` into the cache in one visible step, and return where it lies."""
        final = self.root / "wheels" / key.name
        fresh = Path(tempfile.mkdtemp(prefix=".incoming-", dir=self.root / "wheels"))
        try:
            copied = Path(shutil.copy(wheel, fresh))
            (fresh / "key.json").write_text(json.dumps({"package": key.package, **key.fields}, indent=2) + "\n")
            with copied.open("rb") as handle:
                os.fsync(handle.fileno())
            if final.exists():
                shutil.rmtree(final)
            fresh.chmod(0o755)
            fresh.rename(final)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return final / wheel.name

    @contextlib.contextmanager
    def lock(self, name: str, waiting: str, stopped: threading.Event | None = None) -> Iterator[int]:
        """Hold a lock that processes of this user share; yields its file descriptor.

        Pass the descriptor on to long-running children: after a kill -9 of the set-up they still hold it until they
        have ended, so that the next set-up does not build in the same tree beside them.

        Args:
            name: What is locked; a file name.
            waiting: Printed once if somebody else holds it.
            stopped: Waiting ends with an error once it is set.

        Raises:
            BootstrapError: `stopped` was set while waiting.
        """
        with (self.root / "locks" / (name + ".lock")).open("w") as handle:
            try:
                if not _try_lock(handle):
                    print(waiting, flush=True)
                    _wait_for_lock(handle, stopped or threading.Event())
            except OSError as error:
                print(f"note: {self.root} has no file locks ({error.strerror}): do not run two set-ups at once", flush=True)
            yield handle.fileno()


def _try_lock(handle: TextIO) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_lock(handle: TextIO, stopped: threading.Event) -> None:
    while not _try_lock(handle):
        if stopped.wait(0.5):
            raise BootstrapError("stopped while waiting for another set-up")


def cache_root(environ: Mapping[str, str]) -> Path:
    """``$HVDGRAB_CACHE``, else ``$XDG_CACHE_HOME/hvdgrab``, else ``~/.cache/hvdgrab``."""
    if environ.get("HVDGRAB_CACHE"):
        return Path(environ["HVDGRAB_CACHE"]).expanduser().absolute()
    base = environ.get("XDG_CACHE_HOME", "")
    home = Path(environ.get("HOME") or Path.home())
    return (Path(base) if base.startswith("/") else home / ".cache") / "hvdgrab"
