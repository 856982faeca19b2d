"""`daemon start|stop|status|run|unit`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import hvdgrab
import launcher
from launcher.cli.find import lives, read_without_daemon
from launcher.cli.texts import complain, facts, moment
from launcher.daemon import spawn
from launcher.daemon.dirs import Dirs
from launcher.daemon.http.client import Client, NotRunningError, OfflineRecord
from launcher.daemon.http.messages import DaemonStatus
from launcher.errors import EXIT_OK, EXIT_UNREACHABLE, UnreachableError
from launcher.jobdir import variables
from launcher.jobdir.words import FINAL


def start(*, as_json: bool) -> int:
    """Start the daemon, unless it runs; returns the exit code."""
    _print(Client.connect(start=True).status(), as_json=as_json)
    return EXIT_OK


def stop(*, as_json: bool) -> int:
    """End the daemon; jobs go on.  Returns the exit code."""
    ran = spawn.stop(Dirs.of_user())
    if as_json:
        print(json.dumps({"stopped": ran}))
    elif ran:
        print("stopped; running jobs go on, and the next daemon finds them")
    else:
        print(f"nothing to stop: {read_without_daemon()[0]}")
    return EXIT_OK


def restart(*, as_json: bool) -> int:
    """End the daemon and start another one, such as that of a new version; jobs go on.  Returns the exit code."""
    spawn.stop(Dirs.of_user())
    return start(as_json=as_json)


def status(*, as_json: bool) -> int:
    """Show the daemon; returns the exit code, 3 if none answers."""
    try:
        found = Client.connect(start=False).status()
    except NotRunningError:
        _print_absent(*read_without_daemon(), as_json=as_json)
        return EXIT_UNREACHABLE
    except UnreachableError as error:
        _print_absent(str(error), read_without_daemon()[1], as_json=as_json)
        return EXIT_UNREACHABLE
    _print(found, as_json=as_json)
    return EXIT_OK


def run() -> int:
    """Be the daemon, in the foreground; returns the exit code."""
    return spawn.run(Dirs.of_user())


def _print(found: DaemonStatus, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"running": True, **asdict(found)}))
        return
    pairs = [
        ("running", f"since {moment(found.started)} on {found.host}, process {found.pid}, version {found.version}"),
        ("problem", found.problem),
        ("other version", _other_version(found)),
        ("jobs", f"{_by_state(found, ended=False)}; {_by_state(found, ended=True)}"),
        ("slots", f"{found.cpus_used} of {found.cpus} cores in use"),
        ("GPUs", f"{found.gpus_used} of {found.gpus} in use" if found.gpus else None),
        ("at most", f"{found.max_running} jobs at a time" if found.max_running else None),
        ("record", found.state_dir),
        ("socket", found.socket),
        ("spool", found.spool + _refused(Path(found.spool) / "refused")),
        ("log", found.log),
    ]
    print("\n".join(facts(pairs)))


def _other_version(found: DaemonStatus) -> str | None:
    own = hvdgrab.__version__
    if found.version == own:
        return None
    return f"this command is of version {own}: `hvdgrab-launch daemon restart` brings the daemon to it; jobs go on"


def _refused(directory: Path) -> str:
    """How many files of the spool were no jobs, and where the reasons are."""
    count = len(list(directory.glob("*.error"))) if os.access(directory, os.R_OK) else 0
    return f" ({count} refused: the reasons lie in {directory})" if count else ""


def _by_state(found: DaemonStatus, *, ended: bool) -> str:
    counts = {state: count for state, count in found.jobs.items() if count and (state in FINAL) == ended}
    texts = ", ".join(f"{count} {state}" for state, count in counts.items())
    what = "ended" if ended else "not ended"
    return f"{sum(counts.values())} {what}" + (f" ({texts})" if texts else "")


def _print_absent(message: str, record: OfflineRecord, *, as_json: bool) -> None:
    dirs = Dirs.of_user()
    holder = record.holder if lives(record) else None
    if as_json:
        known = {"state_dir": str(dirs.state), "socket": str(dirs.socket), "log": str(dirs.log)}
        print(
            json.dumps(
                {"running": False, "reason": message, "owner": record.owner, "pid": holder.pid if holder else None, **known}
            )
        )
        return
    complain(message)
    left = [view for view in record.views if not view.final]
    pairs = [
        ("running", f"process {holder.pid} on {holder.host}, which does not answer here" if holder else "no"),
        ("jobs", f"{len(left)} had not ended when it was last heard of" if left else None),
        ("record", dirs.state),
        ("socket", dirs.socket),
        ("log", dirs.log),
    ]
    print("\n".join(facts(pairs)))


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


def unit(*, as_json: bool) -> int:
    """Print a systemd user unit; returns the exit code."""
    print(json.dumps({"unit": unit_text()}) if as_json else unit_text(), end="\n" if as_json else "")
    return EXIT_OK


def unit_text() -> str:
    """The unit for this installation, with the directories that the environment names."""
    root = Path(launcher.__file__).resolve().parents[1]
    kept = {name: os.environ[name] for name in (variables.STATE, variables.RUNTIME, "PATH") if os.environ.get(name)}
    settings = {"PYTHONPATH": str(root), **kept}
    environment = "".join(f"Environment={_quoted(f'{name}={value}')}\n" for name, value in settings.items())
    command = " ".join(_quoted(word) for word in (sys.executable, "-m", "launcher", "daemon", "run"))
    return UNIT.format(command=command, environment=environment)


def _quoted(text: str) -> str:
    """As systemd reads it: quoted, and without its own % and $ substitutions."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if any(letter.isspace() or letter in "\"\\'" for letter in text) else escaped
