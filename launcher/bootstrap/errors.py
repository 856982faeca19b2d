"""The errors of the set-up: a sentence for the user, and the file that holds the whole story."""

from __future__ import annotations

import re
import sys
from pathlib import Path


class BootstrapError(Exception):
    """The set-up cannot go on.

    Args:
        sentence: What is wrong and what to do, in one sentence.
        log: Where the failing command's full output is, if a command failed.
    """

    def __init__(self, sentence: str, log: Path | None = None) -> None:
        super().__init__(sentence if log is None else f"{sentence} (full log: {log})")
        self.sentence = sentence
        self.log = log


class NotOnIndexError(BootstrapError):
    """The package index has no such release for this Python."""


_AGAIN = "run the same command again: it goes on where it stopped"
_NO_NETWORK = re.compile(
    r"Failed to establish a new connection|NewConnectionError|Name or service not known|Temporary failure in name resolution"
    r"|Network is unreachable|No route to host|Connection refused|ProxyError|ConnectTimeoutError|ReadTimeoutError|Read timed out"
    r"|Connection reset by peer|Max retries exceeded|RemoteDisconnected|SSLError|CERTIFICATE_VERIFY_FAILED"
)
_CERTIFICATE = re.compile(r"SSLError|CERTIFICATE_VERIFY_FAILED")
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|Errno 28|Errno 122")
_READ_ONLY = re.compile(r"(?:Read-only file system|Permission denied)[^\n]*")
_NO_MEMORY = re.compile(r"Killed signal terminated program|virtual memory exhausted|Cannot allocate memory|out of memory")
_NO_RELEASE = re.compile(r"(?:No matching distribution found for|no matching distributions available for [^:]*:)\s+(\S+)")
_LAST_ERROR = re.compile(r"^.*(?:\berror\b|\bError\b|ERROR).*$", re.MULTILINE)


def failure(doing: str, output: str, log: Path | None = None) -> BootstrapError:
    """The error of a failed command, with the cause in one sentence.

    Args:
        doing: What was being done, as in "installing torch".
        output: Everything that the command printed.
        log: Where it lies.

    Returns:
        An error that names the cause if it is a known one, else quotes the last line that speaks of an error.
    """
    elsewhere = _outside_cause(doing, output)
    if elsewhere is not None:
        return BootstrapError(elsewhere, log)
    missing = _NO_RELEASE.search(output)
    if missing:
        python = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
        none = f"the package index that pip is set up with has no {missing.group(1)} for {python} here"
        return NotOnIndexError(f"{none}, needed while {doing}; see `pip config list`", log)
    denied = _READ_ONLY.search(output)
    if denied:
        return BootstrapError(f"a directory cannot be written while {doing} ({denied.group(0).strip()[:160]})", log)
    lines = _LAST_ERROR.findall(output) or [line for line in output.splitlines() if line.strip()] or ["it printed nothing"]
    return BootstrapError(f"{doing} failed: {lines[-1].strip()[:200]}", log)


def _outside_cause(doing: str, output: str) -> str | None:
    """What this machine or the network lacks; these also make pip say that a release is missing."""
    if _NO_SPACE.search(output):
        return f"no disk space left while {doing}: free some, then {_AGAIN}"
    if _NO_MEMORY.search(output):
        return f"not enough memory while {doing}: run again with JOBS=1, which compiles one file at a time"
    if _CERTIFICATE.search(output):
        return f"the package index's certificate was refused while {doing}: set pip's `cert` option (pip config), then {_AGAIN}"
    if _NO_NETWORK.search(output):
        return f"no network: pip could not reach its package index while {doing}; check network and proxy, then {_AGAIN}"
    return None
