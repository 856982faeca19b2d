from __future__ import annotations

import json

import pytest

from hvdgrab.bench import gather
from hvdgrab.bench.__main__ import main
from hvdgrab.bench.gather import Card, all_cards, cards
from tests import hosts
from tests.bench import on_hosts
from tests.hosts import need_hosts
from tests.real import find_mpirun

TABLE = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 9999999    9999    0    0    0     0          0         0  9999999    9999    0    0    0     0       0          0
  eth0:  311346     492    0    0    0     0          0         0    41857     460    0    0    0     0       0          0
  eth1:      10       1    0    0    0     0          0         0        20       2    0    0    0     0       0          0
"""


def test_the_cards_of_a_machine_are_read_without_its_loopback(tmp_path):
    table = tmp_path / "dev"
    table.write_text(TABLE)
    assert cards(table) == {"eth0": Card(311346, 41857, 492, 460), "eth1": Card(10, 20, 1, 2)}
    assert all_cards(table, tmp_path) == Card(311356, 41877, 493, 462)


def test_infiniband_counts_words_of_four_bytes(tmp_path):
    table = tmp_path / "dev"
    table.write_text(TABLE)
    port = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    port.mkdir(parents=True)
    (port / "port_rcv_data").write_text("100\n")
    (port / "port_xmit_data").write_text("25\n")
    assert all_cards(table, tmp_path) == Card(311356 + 400, 41877 + 100, 493, 462)


def test_rows_are_compared_with_flat_of_the_same_case():
    rows = [
        {"operation": "gather", "algorithm": "flat", "bytes": 8, "median_ms": 3.0},
        {"operation": "gather", "algorithm": "hierarchical", "bytes": 8, "median_ms": 2.0},
        {"operation": "gather", "algorithm": "flat", "bytes": 16, "median_ms": 1.0},
        {"operation": "gather", "algorithm": "hierarchical", "bytes": 16, "median_ms": 4.0},
    ]
    assert [row["x_flat"] for row in gather.compare(rows)] == [None, 1.5, None, 0.25]


def test_over_hosts_every_row_is_right_and_the_bytes_are_counted(capsys):
    need_hosts()
    site = ["--hosts", "2", "--ranks", "1"]
    code = on_hosts.main(["gather", *site, "--sizes", "20000", "--operations", "broadcast", "--calls", "2", "--json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    result = document["results"]
    assert result["topology"] == "2 ranks on 2 nodes: h1 0, h2 1"
    assert result["network"] == "2 hosts in network namespaces of one machine, 100mbit"
    assert "MPI" in result["mpi"]
    assert [row["algorithm"] for row in result["rows"]] == ["flat", "hierarchical"]
    for row in result["rows"]:
        assert row["wrong"] == 0
        assert 20000 <= row["node_in"] < 25000
        assert 0 < row["min_ms"] <= row["median_ms"] <= row["p95_ms"]


def test_ranks_that_fail_are_an_error_with_their_last_lines(capsys):
    find_mpirun()
    arguments = ["gather", "--ranks", "2", "--sizes", "-1", "--operations", "gather", "--oversubscribe", "--allow-run-as-root"]
    assert main(arguments) == 1
    text = capsys.readouterr().err
    assert "hvdgrab.bench.gather_program ended with code 1" in text
    assert "negative dimensions" in text


def test_hosts_that_cannot_be_made_are_an_error(monkeypatch, capsys):
    monkeypatch.setattr(hosts, "missing", lambda: "root, for network namespaces")
    assert on_hosts.main(["gather", "--operations", "gather", "--sizes", "8"]) == 1
    assert "hosts on this machine need root" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--operations", "scatter"], ["--sizes", "4k"]])
def test_what_is_not_known_is_wrong_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["gather", *arguments])
    assert ended.value.code == 2
    assert "error: argument" in capsys.readouterr().err
