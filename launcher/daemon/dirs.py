"""Where the daemon keeps things.

* The **state directory**, ``$HVDGRAB_STATE``, else ``$XDG_STATE_HOME/hvdgrab``, else ``~/.local/state/hvdgrab``: the record, the
  log, the spool.  It may lie in a home directory that several hosts share.
* The **runtime directory**, ``$HVDGRAB_RUNTIME``, else ``$XDG_RUNTIME_DIR/hvdgrab``, else ``/tmp/hvdgrab-UID``: the socket, the
  lock, the submitters' environments.  It belongs to one host, and nobody else may look into it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import LauncherError
from launcher.host.files import is_network, kind_of
from launcher.jobdir import variables
from launcher.jobdir.paths import directory_in, make_directory, make_private, runtime_directory

SOCKET_PATH_MOST = 107
"""Bytes that Linux takes in the path of a Unix socket, its final zero left out."""


@dataclass(frozen=True)
class Dirs:
    """The two directories and what lies in them; constructing it touches nothing."""

    state: Path
    runtime: Path

    @classmethod
    def of_user(cls) -> Dirs:
        """Those of this process's user, as the environment says."""
        home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.home() raises where HOME is unknown
        state = directory_in(variables.STATE) or (directory_in("XDG_STATE_HOME") or home / ".local" / "state") / "hvdgrab"
        return cls(state, runtime_directory())

    @property
    def record(self) -> Path:
        """The SQLite file."""
        return self.state / "record.sqlite"

    @property
    def log(self) -> Path:
        """The daemon's own log."""
        return self.state / "daemon.log"

    @property
    def spool(self) -> Path:
        """A YAML file that is put here becomes a job."""
        return self.state / "spool"

    @property
    def settings(self) -> Path:
        """The daemon's settings."""
        return self.state / "daemon.yaml"

    def lock_owner(self) -> tuple[int, str] | None:
        """Process id and version of the daemon that holds the lock of this host; None if none has said so."""
        try:
            data = json.loads(self.lock.read_text("ascii"))
            return int(data["pid"]), str(data["version"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def socket(self) -> Path:
        """The Unix socket at which the daemon listens."""
        return self.runtime / "daemon.sock"

    @property
    def lock(self) -> Path:
        """Locked while a daemon lives."""
        return self.runtime / "daemon.lock"

    @property
    def environments(self) -> Path:
        """Submitters' environments, a file a job."""
        return self.runtime / "environments"

    def make(self) -> None:
        """Make and check all directories.

        Raises:
            LauncherError: naming the directory and what is wrong with it.
        """
        make_private(self.runtime)
        check_socket_path(self.socket)
        make_private(self.environments)
        for directory in (self.state, self.spool):
            make_directory(directory)
            if not os.access(directory, os.W_OK | os.X_OK):
                raise LauncherError(f"the directory {directory} cannot be written; set HVDGRAB_STATE to one that can")


def check_socket_path(path: Path) -> None:
    """Raises LauncherError unless a Unix socket can lie there."""
    size = len(os.fsencode(path))
    if size >= SOCKET_PATH_MOST:
        raise LauncherError(f"the path of the socket is {size} bytes long, {path}; set HVDGRAB_RUNTIME to a shorter directory")
    if is_network(path.parent):
        raise LauncherError(
            f"{path.parent} is on a network file system ({kind_of(path.parent)}), where no socket can be: set HVDGRAB_RUNTIME "
            "to a directory of this host, such as one under /tmp"
        )
