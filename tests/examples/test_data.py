"""Where data is found, how it is downloaded, and what is made of it."""

from __future__ import annotations

import dataclasses
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hvdgrab.examples import data, digits, lstm_wikitext2, m4_mlp
from hvdgrab.examples.common import World
from hvdgrab.examples.data import M4_WEEKLY, WIKITEXT2, DataError, DataSet
from tests.examples.real_data import real_data

WORDS = DataSet("words", urls={"a.txt": "", "b.txt": ""}, expected={"a.txt": 3, "b.txt": 2}, count=lambda text: len(text.split()))


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data set of the tests is anywhere; the cache is empty."""
    monkeypatch.delenv("HVDGRAB_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hvdgrab" / "data"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, DataSet]]:
    """A folder served over HTTP, and a data set whose addresses are there."""
    root = tmp_path / "www"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(root))  # type: ignore[arg-type]

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    urls = {name: f"http://127.0.0.1:{server.server_port}/{name}" for name in WORDS.urls}
    yield root, dataclasses.replace(WORDS, urls=urls)
    server.shutdown()
    thread.join()
    server.server_close()


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)


def test_the_users_folder_comes_before_the_cache(nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(nowhere / "words", a="1 2 3", b="4 5")
    assert data.find(WORDS) == nowhere / "words"
    monkeypatch.setenv("HVDGRAB_DATA", str(tmp_path / "mine"))
    _write(tmp_path / "mine" / "words", a="1 2 3")
    assert data.find(WORDS) == nowhere / "words"  # b.txt is missing there: an incomplete folder is none
    _write(tmp_path / "mine" / "words", b="4 5")
    assert data.find(WORDS) == tmp_path / "mine" / "words"


def test_what_is_nowhere_is_downloaded_once(nowhere: Path, served: tuple[Path, DataSet]) -> None:
    root, words = served
    _write(root, a="one two three", b="four five")
    assert data.locate(words, World()) == nowhere / "words"
    assert (nowhere / "words" / "b.txt").read_text() == "four five"
    (root / "a.txt").unlink()
    assert data.locate(words, World()) == nowhere / "words"
    assert sorted(path.name for path in (nowhere / "words").iterdir()) == ["a.txt", "b.txt"]  # nothing temporary is left


def test_a_damaged_download_is_refused_and_not_kept(nowhere: Path, served: tuple[Path, DataSet]) -> None:
    root, words = served
    _write(root, a="one two", b="four five")
    with pytest.raises(DataError, match="with 2 entries; expected 3"):
        data.locate(words, World())
    assert list((nowhere / "words").iterdir()) == []


def test_without_data_and_network_the_message_says_what_to_do(nowhere: Path, served: tuple[Path, DataSet]) -> None:
    _, words = served
    with pytest.raises(DataError) as caught:
        data.locate(words, World())
    for part in ("404", "set HVDGRAB_DATA", "into a folder named words", str(nowhere / "words"), words.urls["a.txt"]):
        assert part in str(caught.value)


def test_only_the_first_rank_of_a_node_downloads(nowhere: Path, served: tuple[Path, DataSet]) -> None:
    root, words = served
    _write(root, a="one two three", b="four five")
    with pytest.raises(DataError, match="set HVDGRAB_DATA"):
        data.locate(words, World(rank=1, size=2, local_rank=1))
    assert not nowhere.exists()


class _TwoRanks(World):
    """A world in which the other rank reports what it is told to."""

    def gather(self, name: str, value: int) -> list[int]:
        return [value, {"data.problem": 0, "data.digest": value + 1}[name]]


def test_ranks_with_different_files_are_told_apart(nowhere: Path) -> None:
    _write(nowhere / "words", a="1 2 3", b="4 5")
    with pytest.raises(DataError, match=r"words differs between ranks: 1 hold other files than rank 0"):
        data.locate(WORDS, _TwoRanks(size=2))


def test_the_digest_sees_every_file(tmp_path: Path) -> None:
    seen = set()
    for a, b in (("1", "2"), ("1", "3"), ("2", "2")):
        _write(tmp_path, a=a, b=b)
        seen.add(data.digest(tmp_path, WORDS))
    assert len(seen) == 3
    assert all(0 <= value < 2**62 for value in seen)  # fits Horovod's int64


@pytest.mark.parametrize("data_set", [M4_WEEKLY, WIKITEXT2], ids=lambda data_set: data_set.folder)
def test_the_real_files_pass_the_check_of_a_download(data_set: DataSet) -> None:
    folder = real_data(data_set)
    for name, expected in data_set.expected.items():
        assert data_set.count((folder / name).read_text()) == expected


def test_a_table_with_short_rows_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('"V1","V2","V3","V4"\n"W1","1.5","2","3"\n"W2","7",NA,\n')
    series = data.read_series(path)
    assert {name: values.tolist() for name, values in series.items()} == {"W1": [1.5, 2.0, 3.0], "W2": [7.0]}


def test_words_end_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_text(" = A = \n \n b <unk>\n")
    assert data.read_words(path) == ["=", "A", "=", "<eos>", "<eos>", "b", "<unk>", "<eos>"]


@pytest.fixture(scope="module")
def weekly() -> m4_mlp.Weekly:
    return m4_mlp.load(real_data(M4_WEEKLY))


def test_windows_start_every_third_week_and_hold_26() -> None:
    cut = m4_mlp.windows(np.arange(33.0))
    assert cut.shape == (3, 26)
    assert cut[:, 0].tolist() == [0.0, 3.0, 6.0]
    assert m4_mlp.windows(np.arange(26.0)).shape == (1, 26)


def test_m4_has_the_windows_that_its_series_give(weekly: m4_mlp.Weekly) -> None:
    lengths = [len(series) for series in data.read_series(real_data(M4_WEEKLY) / "train.csv").values()]
    total = sum((length - 26) // 3 + 1 for length in lengths)
    assert len(weekly.train) + len(weekly.valid) == total == 119_432
    assert len(weekly.train) == 107_480
    assert weekly.train.tensors[0].shape == (107_480, 20)
    assert weekly.train.tensors[1].shape == (107_480, 6)
    assert weekly.last.shape == (359, 20)
    assert weekly.future.shape == (359, 13)


def test_each_series_is_standardised_by_itself(weekly: m4_mlp.Weekly) -> None:
    series = next(iter(data.read_series(real_data(M4_WEEKLY) / "train.csv").values()))
    scaled = (series - series.mean()) / series.std()
    assert abs(scaled.mean()) < 1e-9
    assert scaled.std() == pytest.approx(1)
    np.testing.assert_allclose(weekly.train.tensors[0][0], scaled[:20], rtol=1e-4)
    np.testing.assert_allclose(weekly.train.tensors[1][1], scaled[23:29], rtol=1e-4)
    np.testing.assert_allclose(weekly.last[0], scaled[-20:], rtol=1e-4)
    assert weekly.mean[0, 0] == pytest.approx(series.mean())


def test_smape_of_a_hand_example() -> None:
    # |100 - 110| / (100 + 110) = 0.047619…; an exact forecast and two zeros have no error.
    assert m4_mlp.smape(np.array([[110.0, 50.0, 0.0]]), np.array([[100.0, 50.0, 0.0]])) == pytest.approx(200 * 10 / 210 / 3)


def test_the_naive_forecast_has_the_smape_that_the_competition_published(weekly: m4_mlp.Weekly) -> None:
    last = weekly.last[:, -1:].double().numpy() * weekly.std + weekly.mean
    assert m4_mlp.smape(np.repeat(last, 13, axis=1), weekly.future) == pytest.approx(9.161, abs=0.001)


def test_forecasts_feed_themselves() -> None:
    class Counts(torch.nn.Module):
        """Continues 0, 1, 2, … by the last number it sees."""

        def forward(self, weeks: torch.Tensor) -> torch.Tensor:
            assert weeks.shape[1] == 20
            return weeks[:, -1:] + torch.arange(1.0, 7.0)

    forecast = m4_mlp.forecast(Counts(), torch.arange(20.0).unsqueeze(0))
    assert forecast.tolist() == [[float(week) for week in range(20, 33)]]


def test_digits_are_split_without_overlap_and_all_classes_are_in_both_parts() -> None:
    train, test = digits.load()
    assert (len(train), len(test)) == (1438, 359)
    assert train.tensors[0].shape == (1438, 1, 8, 8)
    assert set(train.tensors[1].tolist()) == set(test.tensors[1].tolist()) == set(range(10))
    assert abs(float(train.tensors[0].mean())) < 0.05
    assert float(train.tensors[0].std()) == pytest.approx(1, abs=0.05)


def test_wikitext_gives_7016_sequences_over_its_training_vocabulary() -> None:
    train, valid, words = lstm_wikitext2.load(real_data(WIKITEXT2))
    assert (len(train), len(valid), words) == (7016, 6218, 14_143)
    inputs, following = train.tensors
    assert inputs.shape == following.shape == (7016, 35)
    assert torch.equal(inputs[0, 1:], following[0, :-1])
    assert int(following[0, -1]) == int(inputs[1, 0])
    assert max(int(valid.tensors[0].max()), int(inputs.max())) < words
    assert int((valid.tensors[0] == 0).sum()) > int((inputs == 0).sum())  # words unknown to the training text became <unk>
