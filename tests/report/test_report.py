"""The report page: complete without a network, true to the metrics, and safe whatever a job was called."""

from __future__ import annotations

import builtins
import html.parser
import re
from pathlib import Path
from typing import Any

import pytest

from hvdgrab.report import metrics, plots
from hvdgrab.report import page as report_page
from hvdgrab.report.__main__ import main
from hvdgrab.report.metrics import EpochRecord

VOID = {"meta", "br", "hr", "img", "link", "input"}


def _job(folder: Path, order: str = "cd-grab", epochs: int = 4, **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for epoch in range(epochs):
        values: dict[str, Any] = {
            "train_loss": 1 / (epoch + 1), "herding_l2_vs_random": 0.7, "bytes_sent": 500, "bytes_dense": 1000, "pairs": 10,
            "pairs_dropped": 1, "step_ms": 5.0, "ordering_ms": 0.5, "epochs": epochs, "ranks": 4, "units": 5,
        } | fields  # fmt: skip
        metrics.append(folder / "metrics.jsonl", EpochRecord(epoch, order, **values))
    return folder


class _Page(html.parser.HTMLParser):
    """Checks that elements nest, and collects texts and what the page would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        addresses = [value or "" for name, value in attributes if name in ("src", "href", "xlink:href")]
        self.loads += [address for address in addresses if not address.startswith("#")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        self.text.append(text)


def test_one_job(tmp_path: Path) -> None:
    folder = _job(tmp_path / "quickstart-1")
    path = report_page.write([folder])
    assert path == folder / "report.html"
    page = _Page(path.read_text())
    text = " ".join(page.text)
    for shown in ("quickstart-1", "cd-grab", "0.25", "0.7", "2 kB (50% of dense)", "40 (4 dropped)", "0.5", "4 of 4 epochs"):
        assert shown in text
    assert page.tags.count("svg") == 3
    assert page.loads == []
    assert "<script" not in path.read_text()
    assert not re.search(r"url\(\s*['\"]?(?!#)|@import", path.read_text())
    assert [item.name for item in folder.iterdir() if "part" in item.name] == []


def test_several_jobs_lie_over_each_other(tmp_path: Path) -> None:
    folders = [_job(tmp_path / "a"), _job(tmp_path / "b", "rr", epochs=2), _job(tmp_path / "c")]
    text = " ".join(_Page(report_page.write(folders).read_text()).text)
    assert "3 jobs compared" in text
    panel = report_page._panels([report_page.load(folder) for folder in folders])[0]
    assert [line.label for line in panel.lines] == ["cd-grab · a", "rr", "cd-grab · c"]
    assert [len(line.values) for line in panel.lines] == [4, 2, 4]


def test_every_logged_scalar_has_its_plot(tmp_path: Path) -> None:
    panels = report_page._panels([report_page.load(_job(tmp_path / "a", extra={"test_accuracy": 0.9, "train_seconds": 3.0}))])
    assert [panel.title for panel in panels][3:] == ["Test accuracy"]
    assert panels[3].lines[0].values == [0.9] * 4


def test_a_job_that_orders_nothing_shows_dashes_and_no_empty_plots(tmp_path: Path) -> None:
    unknown = ("herding_l2_vs_random", "bytes_sent", "bytes_dense", "pairs", "pairs_dropped", "step_ms", "ordering_ms")
    folder = _job(tmp_path / "a", "rr", **dict.fromkeys(unknown))
    page = _Page(report_page.write([folder]).read_text())
    assert page.tags.count("svg") == 1
    assert page.text.count("–") == 5


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "a & b \"c\" 'd'", "{title} $x$ _hidden", "Ünï ☃"])
def test_names_are_escaped(tmp_path: Path, name: str) -> None:
    name = name.replace("/", "∕")
    folder = _job(tmp_path / name, order=name, extra={name: 1.0})
    text = report_page.write([folder, _job(tmp_path / "other", order=name)]).read_text()
    page = _Page(text)
    assert "script" not in page.tags
    assert name in " ".join(page.text)


def test_epochs_that_are_missing_leave_gaps(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    for epoch in (0, 1, 4):
        metrics.append(folder / "metrics.jsonl", EpochRecord(epoch, "rr", train_loss=float(epoch)))
    assert report_page.load(folder).column("train_loss") == [0.0, 1.0, None, None, 4.0]
    _Page(report_page.write([folder]).read_text())


def test_damaged_lines_are_named_on_the_page(tmp_path: Path) -> None:
    folder = _job(tmp_path / "a")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("<torn>\n")
    assert "metrics.jsonl, line 5" in " ".join(_Page(report_page.write([folder]).read_text()).text)


def test_without_matplotlib_the_tables_stay_and_a_sentence_tells_how_to_get_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def absent(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", absent)
    page = _Page(report_page.write([_job(tmp_path / "a")]).read_text())
    assert "svg" not in page.tags
    assert "pip install 'hvdgrab[report]'" in " ".join(page.text)
    assert page.tags.count("table") == 2


def test_the_same_data_gives_the_same_page(tmp_path: Path) -> None:
    folder = _job(tmp_path / "a")
    assert report_page.write([folder]).read_text() == report_page.write([folder]).read_text()


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _job(tmp_path / "a")
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    (tmp_path / "empty").mkdir()
    assert main([str(folder), str(tmp_path / "empty")]) == 1
    assert "no finished epoch in" in capsys.readouterr().err


def test_the_first_epochs_of_a_restarted_job_are_replaced(tmp_path: Path) -> None:
    folder = _job(tmp_path / "a", epochs=3)
    metrics.append(folder / "metrics.jsonl", EpochRecord(2, "cd-grab", train_loss=0.125))
    assert report_page.load(folder).column("train_loss") == [1.0, 0.5, 0.125]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plots_are_saved_by_suffix(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"p.{suffix}"
    lines = [plots.Line("rr", [1.0, 0.01, None]), plots.Line("_x$y", [None, None, None])]
    plots.save([plots.Panel("loss", lines, log=True)], path)
    assert path.read_bytes()[:8].startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
