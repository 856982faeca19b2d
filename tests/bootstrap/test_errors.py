from __future__ import annotations

from pathlib import Path

import pytest

from launcher.bootstrap.errors import BootstrapError, NotOnIndexError, failure

NOT_ON_INDEX = "the package index that pip is set up with has no"
OUTPUTS = {
    "no network": (
        "WARNING: Retrying (total=0) after connection broken by 'NewConnectionError: ' Failed to establish a new connection: "
        "[Errno -3] Temporary failure in name resolution': /simple/torch/\n"
        "ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: none)\n"
        "ERROR: No matching distribution found for torch==2.13.0\n"
    ),
    "no disk space": "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
    "not enough memory": "c++: fatal error: Killed signal terminated program cc1plus\nmake: *** Error 1\n",
    "certificate": "Could not fetch URL: (Caused by SSLError(SSLCertVerificationError(1, 'CERTIFICATE_VERIFY_FAILED')))\n",
    NOT_ON_INDEX: "ERROR: No matching distribution found for torch==9.9.9\n",
    "cannot be written": "ERROR: Could not install packages due to an OSError: [Errno 30] Read-only file system: '/opt/venv/x'\n",
}


CONSTRAINED = (
    "ERROR: Cannot install torch==2.13.0+cpu because these package versions have conflicting dependencies.\n"
    "Additionally, some packages in these conflicts have no matching distributions available for your environment:\n    torch\n"
    "ERROR: ResolutionImpossible: for help visit the documentation\n"
)


def test_a_constrained_release_that_is_not_there_is_told_as_well() -> None:
    error = failure("installing torch", CONSTRAINED)
    assert isinstance(error, NotOnIndexError)
    assert error.sentence.startswith(NOT_ON_INDEX + " torch ")


@pytest.mark.parametrize("expected", OUTPUTS)
def test_known_failures_are_named(expected: str) -> None:
    error = failure("installing torch", OUTPUTS[expected])
    sentence = error.sentence
    assert isinstance(error, NotOnIndexError) == (expected == NOT_ON_INDEX)
    assert expected in sentence
    assert "installing torch" in sentence
    assert "\n" not in sentence


def test_an_unknown_failure_quotes_its_last_error() -> None:
    error = failure("building Horovod", "fine\nx.cc:3:1: error: expected ';'\nmake[1]: leaving\n")
    assert error.sentence == "building Horovod failed: x.cc:3:1: error: expected ';'"


@pytest.mark.parametrize("output", ["", "  \n"])
def test_silence_is_said_to_be_silence(output: str) -> None:
    assert failure("building", output).sentence == "building failed: it printed nothing"


def test_the_log_is_named() -> None:
    assert str(BootstrapError("it broke", Path("/logs/a.log"))) == "it broke (full log: /logs/a.log)"
    assert str(BootstrapError("it broke")) == "it broke"
