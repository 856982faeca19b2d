"""The examples' data sets: finding, downloading and reading them.

A data set is searched in ``$HVDGRAB_DATA``, in ``shared/data`` beside or in the checkout, and in the user's cache
(``$XDG_CACHE_HOME/hvdgrab/data``).  If it is in none of them, one rank of each node downloads it into the cache.
"""

from __future__ import annotations

import csv
import hashlib
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hvdgrab.examples.common import DataError, World

_TIMEOUT = 60.0  # seconds without a byte


@dataclass(frozen=True)
class DataSet:
    """The files of a data set, their addresses, and a check that each is complete."""

    folder: str
    urls: dict[str, str]
    """Public address by file name."""
    expected: dict[str, int]
    """Number of words (text), or of rows after the header (tables), by file name."""
    count: Callable[[str], int]
    """Computes the number to compare with ``expected`` from a file's text."""


M4_WEEKLY = DataSet(
    folder="m4-weekly",
    urls={
        "train.csv": "https://raw.githubusercontent.com/Mcompetitions/M4-methods/master/Dataset/Train/Weekly-train.csv",
        "test.csv": "https://raw.githubusercontent.com/Mcompetitions/M4-methods/master/Dataset/Test/Weekly-test.csv",
    },
    expected={"train.csv": 359, "test.csv": 359},
    count=lambda text: len(text.splitlines()) - 1,
)
WIKITEXT2 = DataSet(
    folder="wikitext-2",
    urls={
        name: f"https://raw.githubusercontent.com/pytorch/examples/main/word_language_model/data/wikitext-2/{name}"
        for name in ("test.txt", "valid.txt")
    },
    expected={"test.txt": 241_211, "valid.txt": 213_886},
    count=lambda text: len(text.split()),
)


def places() -> list[Path]:
    """The folders that may hold data sets, in the order of the search."""
    given = os.environ.get("HVDGRAB_DATA")
    checkout = Path(__file__).resolve().parents[2]
    shared = [folder / "shared" / "data" for folder in (checkout.parent, checkout)]
    return [*([Path(given)] if given else []), *shared, cache()]


def cache() -> Path:
    """The folder for downloads."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hvdgrab" / "data"


def find(data_set: DataSet) -> Path | None:
    """Find the first folder that holds every file of the data set; None if there is none."""
    folders = [place / data_set.folder for place in places()]
    return next((folder for folder in folders if all((folder / name).is_file() for name in data_set.urls)), None)


def locate(data_set: DataSet, world: World) -> Path:
    """Find or download the data set on every rank; collective, and all ranks get files of equal content.

    Raises:
        DataError: on every rank, if a node neither has nor can get it, or if ranks hold different files.
    """
    problem = ""
    if world.local_rank == 0 and find(data_set) is None:
        try:
            download(data_set)
        except (OSError, DataError) as error:
            problem = _advice(data_set, error)
    if any(failed := world.gather("data.problem", int(bool(problem)))):
        raise DataError(problem or f"no data on rank(s) {_ranks(failed)}: their output tells why")
    folder = find(data_set)
    if folder is None:
        raise DataError(f"rank {world.rank} sees no {data_set.folder} although its node's first rank does: set HVDGRAB_DATA")
    digests = world.gather("data.digest", digest(folder, data_set))
    if len(set(digests)) > 1:
        raise DataError(
            f"{data_set.folder} differs between ranks: {_ranks([int(value != digests[0]) for value in digests])} hold other "
            f"files than rank 0 (this rank reads {folder}): set HVDGRAB_DATA to one folder that all nodes share"
        )
    return folder


def digest(folder: Path, data_set: DataSet) -> int:
    """Hash the data set's files to 62 bits."""
    total = hashlib.sha256()
    for name in sorted(data_set.urls):
        total.update((folder / name).read_bytes())
    return int.from_bytes(total.digest()[:8], "big") >> 2


def download(data_set: DataSet) -> None:
    """Download missing files into the cache; a file appears there whole or not at all.

    Raises:
        OSError: no network, space or permission.
        DataError: the download is not the data set.
    """
    folder = cache() / data_set.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, url in data_set.urls.items():
        if not (folder / name).is_file():
            _fetch(url, folder / name, data_set)


def _fetch(url: str, target: Path, data_set: DataSet) -> None:
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:
        content: bytes = answer.read()
    found, expected = data_set.count(content.decode("utf-8", "replace")), data_set.expected[target.name]
    if found != expected:
        raise DataError(f"{url} gave {len(content)} bytes with {found} entries; expected {expected}")
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as part:
        try:
            part.write(content)
            part.close()
            Path(part.name).replace(target)
        except OSError:
            Path(part.name).unlink(missing_ok=True)
            raise


def _advice(data_set: DataSet, error: Exception) -> str:
    looked = ", ".join(str(place / data_set.folder) for place in places())
    files = "; ".join(f"{url} as {name}" for name, url in data_set.urls.items())
    return (
        f"no {data_set.folder} data: not in {looked}, and the download failed ({error}). "
        f"Fetch {files} into a folder named {data_set.folder}, and set HVDGRAB_DATA to the folder above it"
    )


def _ranks(flags: list[int]) -> str:
    return ", ".join(str(rank) for rank, flag in enumerate(flags) if flag)


def read_series(path: Path) -> dict[str, np.ndarray]:
    """Read an M4 table: (length,) float64 by series id.  The first row is the header; short rows end in empty cells."""
    with path.open(newline="") as file:
        rows = csv.reader(file)
        next(rows)
        return {row[0]: np.array([float(value) for value in row[1:] if value not in ("", "NA")]) for row in rows if row}


def read_words(path: Path) -> list[str]:
    """Split a text into words, with ``<eos>`` at the end of every line."""
    with path.open(encoding="utf-8") as file:
        return [word for line in file for word in [*line.split(), "<eos>"]]
