from __future__ import annotations

import contextlib
import io
import os
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from launcher.bootstrap import horovod_source as source
from launcher.bootstrap.cache import cache_root
from launcher.bootstrap.errors import BootstrapError
from tests.real import need


def fake_sdist(path: Path, **files: str) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            data = text.encode()
            inside = name.replace("__", "/").replace("_txt", ".txt").replace("_cmake", ".cmake")
            entry = tarfile.TarInfo(f"horovod-0.28.1/{inside}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return path


OLD = "# x\nset(CMAKE_CXX_STANDARD 14)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)\n"


def test_both_files_ask_for_the_new_standard(tmp_path: Path) -> None:
    files = {"CMakeLists_txt": OLD, "horovod__torch__CMakeLists_txt": "    " + OLD, "cmake__Utilities_cmake": source.OLD_FOLDER}
    archive = fake_sdist(tmp_path / "h.tar.gz", **files)
    source.unpack(archive, tmp_path / "source")
    for name in source.CMAKE_LISTS:
        text = (tmp_path / "source" / name).read_text()
        assert "set(CMAKE_CXX_STANDARD 17)\nset(CMAKE_CXX_STANDARD_REQUIRED ON)" in text
        assert "14" not in text
    assert (tmp_path / "source" / source.UTILITIES).read_text() == source.NEW_FOLDER
    assert not (tmp_path / "source.part").exists()


@pytest.mark.parametrize("torch_text", ["", "set(CMAKE_CXX_STANDARD 17)\n", OLD + OLD])
def test_another_release_is_refused_and_leaves_no_source(tmp_path: Path, torch_text: str) -> None:
    archive = fake_sdist(tmp_path / "h.tar.gz", CMakeLists_txt=OLD, horovod__torch__CMakeLists_txt=torch_text)
    with pytest.raises(BootstrapError, match=r"horovod/torch/CMakeLists.txt does not hold"):
        source.unpack(archive, tmp_path / "source")
    assert not (tmp_path / "source").exists()


def test_a_broken_archive_is_one_sentence(tmp_path: Path) -> None:
    archive = fake_sdist(tmp_path / "h.tar.gz", CMakeLists_txt=OLD * 1000)
    archive.write_bytes(archive.read_bytes()[:60])
    with pytest.raises(BootstrapError, match="not a whole archive"):
        source.unpack(archive, tmp_path / "source")


def test_an_archive_with_another_digest_is_removed(tmp_path: Path) -> None:
    archive = fake_sdist(tmp_path / "h.tar.gz", CMakeLists_txt=OLD)
    with pytest.raises(BootstrapError, match="sha256"):
        source.check_archive(archive)
    assert not archive.exists()


def test_the_real_release_is_patched(tmp_path: Path) -> None:
    archive = cache_root(os.environ) / "sdists" / f"horovod-{source.VERSION}.tar.gz"
    need("Horovod's sdist in the cache", archive.exists())
    source.check_archive(archive)
    with tarfile.open(archive) as tar:
        for name, _, _ in source.PATCHES:
            member = tar.extractfile(f"horovod-{source.VERSION}/{name}")
            assert member is not None
            target = tmp_path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(member.read())
    source.patch(tmp_path)
    assert all(new in (tmp_path / name).read_text() for name, _, new in source.PATCHES)


def test_a_wheel_without_its_library_is_refused(tmp_path: Path) -> None:
    """As Horovod's own CMake files made it below a folder with a + in its name: the library lay elsewhere in the wheel."""
    wheel = tmp_path / "horovod.whl"
    for name, sound in (("root/c++/source/horovod/torch/mpi_lib_v2.so", False), ("horovod/torch/mpi_lib_v2.x.so", True)):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(name, "")
        with contextlib.nullcontext() if sound else pytest.raises(BootstrapError, match="without its torch library"):
            source.require_library(wheel)


@pytest.fixture
def whole_object(tmp_path: Path) -> Path:
    code = tmp_path / "code.c"
    code.write_text("int answer(void) { return 42; }\n")
    subprocess.run(["cc", "-g", "-c", str(code), "-o", str(tmp_path / "code.o")], check=True)
    return tmp_path / "code.o"


def test_a_whole_object_file_is_kept(whole_object: Path) -> None:
    assert source.is_whole_object(whole_object)
    assert source.drop_unfinished(whole_object.parent) == 0
    assert whole_object.exists()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_an_object_file_that_ends_early_is_dropped(whole_object: Path, share: float) -> None:
    data = whole_object.read_bytes()
    whole_object.write_bytes(data[: int(len(data) * share)])
    assert source.drop_unfinished(whole_object.parent) == 1
    assert not whole_object.exists()


def test_linked_libraries_are_always_made_again(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("deep/a.so", "b.a"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "CMakeCache.txt").write_text("")
    assert source.drop_unfinished(tmp_path) == 2
    assert (tmp_path / "CMakeCache.txt").exists()
