"""``hvdgrab-bench gather`` and ``overhead`` over several hosts that are made on this machine; for root, on Linux.

    python -m tests.bench.on_hosts --hosts 2 --rate 100mbit gather --ranks 2 --sizes 4096,65536

``--ranks`` ranks run on each host; all other arguments are those of ``hvdgrab-bench``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from hvdgrab.bench import __main__ as bench
from hvdgrab.bench.runs import BenchError, Site
from tests.hosts import Net, build_hosts

PROGRAM = "python -m tests.bench.on_hosts"
EXPORTED = ("HVDGRAB_JOB_DIR", "HVDGRAB_GRAB", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class HostsSite(Site):
    """Starts ``ranks`` ranks on each host of ``net``."""

    net: Net | None = None
    rate: str | None = None
    """Of every host's link in each direction, as tc(8) spells it."""

    @property
    def world(self) -> int:
        """Number of ranks on all hosts."""
        return self.ranks * len(self.net.names)

    @property
    def network(self) -> str:
        """See `Site.network`."""
        return f"{len(self.net.names)} hosts in network namespaces of one machine, {self.rate or 'links as fast as it is'}"

    def command(self, arguments: Sequence[str]) -> list[str]:
        """See `Site.command`: mpirun starts on the first host."""
        exported = [word for name in EXPORTED for word in ("-x", name)]
        return self.net.command(self.net.names[0], self.net.mpirun_command(self.ranks, arguments, exported))

    def received(self) -> int:
        """See `Site.received`."""
        return max(self.net.bytes(name).received for name in self.net.names)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit code is that of ``hvdgrab-bench``."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout, allow_abbrev=False)
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default: %(default)s)")
    parser.add_argument("--rate", default="100mbit", help="of the hosts' links, as tc(8) spells it (default: %(default)s)")
    given, rest = parser.parse_known_args(arguments)
    try:
        with build_hosts(given.hosts, given.rate) as net:
            return bench.main(rest, lambda site: HostsSite(**asdict(site), net=net, rate=given.rate), PROGRAM)
    except BenchError as error:
        print(f"hvdgrab-bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
