from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hvdgrab.bench.runs import BenchError
from tests import hosts as kit
from tests.hosts import hosts
from tests.real import ROOT


@pytest.fixture(scope="module")
def net():
    with hosts(2, rate="100mbit", shm_bytes=64 * 2**20) as made:
        yield made


def until(condition, seconds=10.0):
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.02)


def processes_with(word: str) -> list[int]:
    """Process ids of this machine, all hosts included, whose arguments are ``sleep word``."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cmdline").read_bytes() == b"sleep\0" + word.encode() + b"\0":
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_a_host_has_a_name_processes_and_shared_memory_of_its_own(net):
    script = 'echo "$(hostname) $$ $TMPDIR"; touch /dev/shm/$1 /run/$1; ls /dev/shm; df -k --output=size /dev/shm | tail -1'
    for name in net.names:
        host, _, folder, *listed = net.run(name, ["sh", "-c", script, "sh", f"of-{name}"]).stdout.split()
        assert (host, folder, listed) == (name, "/run/tmp", [f"of-{name}", "65536"])
    assert not Path("/dev/shm/of-h1").exists()
    assert "h2" not in net.run("h1", ["ps", "-eo", "args"]).stdout


def test_the_exit_code_and_both_streams_come_back(net):
    done = net.run("h2", ["sh", "-c", "echo out; echo err >&2; pwd; exit 7"], cwd="/tmp")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n/tmp\n", "err\n")
    assert net.run("h1", ["cat"], stdin=None, input="given\n").stdout == "given\n"
    assert net.run("h1", ["/no/such/program"]).returncode == 127
    assert net.run("h1", ["sh", "-c", "kill -9 $$"]).returncode == -signal.SIGKILL


def test_arguments_and_environment_arrive_unchanged(net, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "7")
    arguments = ["$HOME", "`x`", "", "a b\n'\"", "größer", "x" * 100_000]
    told = "[sys.argv[1:], e['A'], 'OMPI_COMM_WORLD_SIZE' in e]"
    program = f"import json, sys; from os import environ as e; print(json.dumps({told}))"
    done = net.run("h1", [sys.executable, "-c", program, *arguments], {"A": "b c"})
    assert json.loads(done.stdout) == [arguments, "b c", False]


def test_signals_reach_the_program(net):
    process = net.start("h1", ["sh", "-c", "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == "up\n"
    process.terminate()
    assert process.wait(10) == 5
    process.stdout.close()


def test_a_program_whose_caller_is_killed_ends(net):
    process = net.start("h2", ["sh", "-c", "sleep 98761 & sleep 98761"])
    until(lambda: len(processes_with("98761")) == 2)
    process.kill()
    process.wait()
    until(lambda: not processes_with("98761"))


def test_the_card_counts_what_goes_from_host_to_host(net):
    receive = net.start("h2", [sys.executable, "-c", "import socket; s = socket.create_server(('10.77.0.2', 9)); "
        "print('up', flush=True); c, _ = s.accept()\nwhile c.recv(2**16): pass"], stdout=subprocess.PIPE)  # fmt: skip
    assert receive.stdout.readline() == "up\n"
    before = net.bytes("h2")
    send = "import socket; c = socket.create_connection(('h2', 9)); c.sendall(bytes(1_000_000))"
    assert net.run("h1", [sys.executable, "-c", send]).returncode == 0
    assert receive.wait(10) == 0
    receive.stdout.close()
    moved = net.bytes("h2") - before
    assert 1_000_000 < moved.received < 1_060_000
    assert 0 < moved.sent < 60_000


def test_the_links_have_the_rate_that_was_asked_for(net):
    for name in net.names:
        assert "rate 100Mbit" in net.run(name, ["tc", "qdisc", "show", "dev", "eth0"]).stdout


def test_mpirun_reaches_all_hosts(net):
    program = (
        "import socket; from mpi4py import MPI; world = MPI.COMM_WORLD; "
        "local = world.Split_type(MPI.COMM_TYPE_SHARED); "
        "print(f'{world.rank} {socket.gethostname()} {local.size}\\n', end='', flush=True)"
    )
    done = net.mpirun(2, ["-c", program])
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 h1 2", "1 h1 2", "2 h2 2", "3 h2 2"]


def test_a_host_can_be_cut_off_and_another_lost():
    with hosts(["left", "right", "far"]) as net:
        reach = "import socket, sys; socket.setdefaulttimeout(0.5); socket.create_connection((sys.argv[1], 9))"
        attempt = [sys.executable, "-c", reach]
        assert "refused" in net.run("left", [*attempt, "right"]).stderr
        net.cut("right")
        assert "refused" not in net.run("left", [*attempt, "right"]).stderr
        net.mend("right")
        until(lambda: "refused" in net.run("left", [*attempt, "right"]).stderr)
        process = net.start("far", ["sleep", "98762"], stderr=subprocess.PIPE)
        until(lambda: processes_with("98762"))
        net.lose("far")
        assert process.communicate(timeout=10)[1] == "the host far is gone\n"
        assert process.returncode == 255
        assert not processes_with("98762")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_is_left_when_their_maker_is_killed(number):
    program = (
        "import time; from tests.hosts import hosts\nwith hosts(2) as net:\n"
        "  net.start('h2', ['setsid', 'sleep', '98763'])\n  print(net.folder, flush=True)\n  time.sleep(60)"
    )
    maker = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    folder = Path(maker.stdout.readline().strip())
    until(lambda: processes_with("98763"))
    maker.send_signal(number)
    maker.wait()
    maker.stdout.close()
    until(lambda: not processes_with("98763"))
    kit._sweep()
    assert not folder.exists()


def test_what_is_lacking_is_named(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(BenchError, match="hosts on this machine need root, for network namespaces"), kit.build_hosts(2):
        pass
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(kit.shutil, "which", lambda tool: None if tool == "tc" else tool)
    with pytest.raises(BenchError, match="the programs tc"), kit.build_hosts(2):
        pass
