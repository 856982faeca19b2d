"""`daemon start|stop|status|run|unit`."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import launcher
from launcher.cli.guard import complain
from launcher.cli.table import facts
from launcher.cli.texts import moment
from launcher.client import Client, read_record_offline
from launcher.daemon import control
from launcher.daemon.dirs import Dirs
from launcher.errors import EXIT_OK, EXIT_UNREACHABLE, LauncherError, UnreachableError
from launcher.state import FINAL, DaemonStatus


def start(*, as_json: bool) -> int:
    """Start the daemon, unless it runs; returns the exit code."""
    _print(Client.connect(start=True).status(), as_json=as_json)
    return EXIT_OK


def stop(*, as_json: bool) -> int:
    """End the daemon; jobs go on.  Returns the exit code."""
    ran = control.stop(Dirs.of_user())
    if as_json:
        print(json.dumps({"stopped": ran}))
    else:
        print("stopped; running jobs go on, and the next daemon finds them" if ran else "no daemon ran on this host")
    return EXIT_OK


def status(*, as_json: bool) -> int:
    """Show the daemon; returns the exit code, 3 where none answers."""
    try:
        found = Client.connect(start=False).status()
    except UnreachableError as error:
        _print_absent(str(error), as_json=as_json)
        return EXIT_UNREACHABLE
    _print(found, as_json=as_json)
    return EXIT_OK


def run() -> int:
    """Be the daemon, in the foreground; returns the exit code."""
    return control.run(Dirs.of_user())


def _print(found: DaemonStatus, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"running": True, **asdict(found)}))
        return
    active = sum(count for state, count in found.jobs.items() if state not in FINAL)
    pairs = [
        ("running", f"since {moment(found.started)} on {found.host}, process {found.pid}, version {found.version}"),
        ("problem", found.problem),
        ("jobs", f"{active} under way, {sum(found.jobs.values()) - active} ended" + _by_state(found)),
        ("slots", f"{found.cpus_used} of {found.cpus} cores in use"),
        ("GPUs", f"{found.gpus_used} of {found.gpus} in use" if found.gpus else None),
        ("at most", f"{found.max_running} jobs at a time" if found.max_running else None),
        ("record", found.state_dir),
        ("socket", found.socket),
        ("spool", found.spool),
        ("log", found.log),
    ]
    print("\n".join(facts(pairs)))


def _by_state(found: DaemonStatus) -> str:
    texts = [f"{count} {state}" for state, count in found.jobs.items() if count]
    return f" ({', '.join(texts)})" if texts else ""


def _print_absent(message: str, *, as_json: bool) -> None:
    dirs = Dirs.of_user()
    owner = _owner()
    if as_json:
        print(json.dumps(_absent(message, dirs, owner)))
        return
    complain(message)
    elsewhere = f"the record belongs to the daemon on {owner}" if owner not in (None, socket.gethostname()) else None
    pairs = [("running", "no"), ("owner", elsewhere), ("record", dirs.state), ("socket", dirs.socket), ("log", dirs.log)]
    print("\n".join(facts(pairs)))


def _absent(message: str, dirs: Dirs, owner: str | None) -> dict[str, Any]:
    return {
        "running": False,
        "reason": message,
        "owner": owner,
        "state_dir": str(dirs.state),
        "socket": str(dirs.socket),
        "log": str(dirs.log),
    }


def _owner() -> str | None:
    try:
        return read_record_offline().owner
    except LauncherError:
        return None


UNIT = """\
# A user unit of systemd: the launcher's daemon, started at login and again when it ends unexpectedly.
#   hvdgrab-launch daemon unit > ~/.config/systemd/user/hvdgrab-launch.service
#   systemctl --user daemon-reload && systemctl --user enable --now hvdgrab-launch
#   loginctl enable-linger       (keeps it running after you log out)
[Unit]
Description=hvdgrab launcher daemon

[Service]
ExecStart={command}
{environment}Restart=on-failure
# Jobs outlive the daemon: only its own process is ended.
KillMode=process

[Install]
WantedBy=default.target
"""


def unit() -> int:
    """Print a systemd user unit; returns the exit code."""
    print(unit_text(), end="")
    return EXIT_OK


def unit_text() -> str:
    """The unit for this installation, with the directories that the environment names."""
    root = Path(launcher.__file__).resolve().parents[1]
    kept = {name: os.environ[name] for name in ("HVDGRAB_STATE", "HVDGRAB_RUNTIME", "PATH") if os.environ.get(name)}
    variables = {"PYTHONPATH": str(root), **kept}
    environment = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in variables.items())
    command = " ".join(_quoted(word) for word in (sys.executable, "-m", "launcher", "daemon", "run"))
    return UNIT.format(command=command, environment=environment)


def _quoted(text: str) -> str:
    """As systemd reads it: quoted, and without its own % and $ substitutions."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(letter.isspace() or letter in "\"\\'" for letter in text) else escaped
