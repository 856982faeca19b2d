from __future__ import annotations

import math

import pytest

from hvdgrab.bench.overhead import overhead, wire
from hvdgrab.bench.runs import Site
from tests.bench.on_hosts import HostsSite
from tests.hosts import hosts


class Names:
    """Stands in for hosts."""

    names = ("left", "right")

    def mpirun_command(self, ranks, arguments, options):
        return ["mpirun", str(ranks), *options, "python", *arguments]

    def command(self, host, arguments):
        return ["on", host, *arguments]


def test_a_run_starts_on_the_first_host_and_its_settings_reach_all():
    command = HostsSite(2, net=Names()).command(["-m", "hvdgrab.examples.digits", "--epochs", "3"])
    assert command[:4] == ["on", "left", "mpirun", "2"]
    assert command[-5:] == ["python", "-m", "hvdgrab.examples.digits", "--epochs", "3"]
    exported = [command[place + 1] for place, word in enumerate(command) if word == "-x"]
    assert exported == ["HVDGRAB_JOB_DIR", "HVDGRAB_GRAB", "OMP_NUM_THREADS"]


def test_ranks_of_all_hosts_are_counted():
    site = HostsSite(3, net=Names(), rate="1gbit")
    assert (site.world, site.network) == (6, "2 hosts in network namespaces of one machine, 1gbit")
    assert (Site(3).world, Site(3).network, Site(3).received()) == (3, "one host, no network", None)


def test_bytes_are_those_between_the_marks():
    row = wire([1000, 41_000, 161_000], units=10, order="cd-grab")
    assert row == {"plain_kB": 4.0, "cd-grab_kB": 12.0}
    assert wire([None, None, None], units=10, order="cd-grab") == {}
    assert wire([1, 2, 3], units=0, order="cd-grab") == {}
    assert not any(math.isnan(value) for value in row.values())


@pytest.mark.soak
def test_an_example_trains_over_a_network():
    with hosts(2, "100mbit") as net:
        rows = overhead(HostsSite(1, timeout=400.0, net=net), "digits", pairs=1, epochs=1, options=["--limit", "200"])
    assert rows[0]["wrong"] == 0
    assert rows[0]["cd-grab_kB"] > 0
