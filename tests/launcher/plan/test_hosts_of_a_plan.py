from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import PlanError
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import HostSlots, Plan
from launcher.plan.layout import spread
from launcher.plan.planning import make_plan, next_attempt
from tests.launcher.helpers import JOB_ID, host, plan, spec

BASE = "command: x\nbackend: {kind: mpirun}\n"


def on(resources: str, further: str = "", **facts: Any) -> Plan:
    return plan(f"{BASE}resources: {{{resources}}}\n{further}", **facts)


def layout(made: Plan) -> str:
    return " ".join(f"{one.name}:{one.slots}" for one in made.placement.hosts)


def refusal(resources: str, further: str = "") -> str:
    with pytest.raises(PlanError) as caught:
        on(resources, further)
    return str(caught.value)


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ("hosts: [a:2, b:2], ranks: 4", "a:2 b:2"),
        ("hosts: [a:2, b:2], ranks: 3", "a:2 b:1"),
        ("hosts: [a:2, b:2], ranks: 2", "a:2"),
        ("hosts: [a:2, b:2]", "a:2 b:2"),
        ("hosts: [a, b], ranks: 5", "a:3 b:2"),
        ("hosts: ['n[1-3]'], ranks: 3", "n1:1 n2:1 n3:1"),
        ("hosts: [a:1, b], ranks: 4", "a:1 b:3"),
        ("hosts: [a:1, b:3], ranks: 8, oversubscribe: true", "a:2 b:6"),
        ("hosts: [a:1, b:2], ranks: 4, oversubscribe: true", "a:1 b:3"),
        ("hosts: [a:2, b:2], server_ranks: 1", "a:2 b:2"),
        ("hosts: [a:2], ranks: 1", "a:1"),
    ],
)
def test_ranks_are_spread_by_slots(resources: str, expected: str) -> None:
    made = on(resources)
    assert layout(made) == expected
    assert made.placement.ranks == sum(one.slots for one in made.placement.hosts)


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        ("hosts: [a:2], ranks: 3", "job.yaml:3: resources.hosts: 3 ranks on 2 slots of 1 host would take turns: add hosts"),
        ("hosts: [a, b]", "a has no slots: write a:N, or the number of ranks in resources.ranks"),
        ("hosts: [a:1], server_ranks: 1", "the only slot is taken by the server rank"),
        ("hosts: [a, a]", "a is named twice"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(resources: str, message: str) -> None:
    assert message in refusal(resources)


def test_local_ranks_have_no_hosts() -> None:
    with pytest.raises(PlanError, match="backend.kind: local starts one rank on this host"):
        plan("command: x\nbackend: {kind: local}\nresources: {hosts: [a:1]}")


def test_one_rank_on_another_host_needs_mpirun() -> None:
    assert plan("command: x\nresources: {hosts: [a:1]}", horovodrun=None).launch.backend == "mpirun"


def test_how_hosts_are_reached() -> None:
    made = on("hosts: [a:1], ssh: {user: me, port: 22, identity: k, options: [A=b]}")
    expected = "ssh -x -o BatchMode=yes -o ConnectTimeout=10 -o A=b -p 22 -i k -l me"
    assert made.placement.ssh_command == tuple(expected.split())
    assert plan().placement.ssh_command == ()


def start(attempt: int, excluded: set[str], text: str) -> Plan:
    return make_plan(spec(text), host(), JobPaths(Path("/jobs") / JOB_ID), attempt, excluded)


FOUR = BASE + "resources: {hosts: [a:2, b:2, c:2], ranks: 4}\n"


def test_excluded_hosts_are_avoided() -> None:
    made = start(2, {"a"}, FOUR)
    assert (layout(made), made.placement.excluded_hosts, made.job.attempt) == ("b:2 c:2", ("a",), 2)
    assert made.launch.environment["HVDGRAB_ATTEMPT"] == "2"
    assert made.launch.environment["HVDGRAB_PROGRESS"].endswith("/attempts/0002/progress")


def test_with_too_few_hosts_left_fewer_ranks_start_only_if_allowed() -> None:
    with pytest.raises(PlanError, match="without a, b, 2 slots are left for 4 ranks; restart.min_ranks would allow fewer"):
        start(2, {"a", "b"}, FOUR)
    made = start(2, {"a", "b"}, FOUR + "restart: {min_ranks: 2}")
    assert (layout(made), made.placement.ranks, made.placement.wanted_ranks) == ("c:2", 2, 4)
    with pytest.raises(PlanError, match="fewer than restart.min_ranks: 3"):
        start(2, {"a", "b"}, FOUR + "restart: {min_ranks: 3}")
    with pytest.raises(PlanError, match="all hosts are avoided for now: a, b, c"):
        start(2, {"a", "b", "c"}, FOUR + "restart: {min_ranks: 1}")
    shared = start(2, {"a", "b"}, FOUR.replace("ranks: 4", "ranks: 4, oversubscribe: true"))
    assert (layout(shared), shared.placement.oversubscribed) == ("c:4", True)


def test_this_host_cannot_be_avoided_where_it_is_the_only_one() -> None:
    assert start(2, {"node1"}, "command: x").placement.ranks == 4


@pytest.mark.parametrize("excluded", [set(), {"a"}, {"b", "c"}])
def test_the_plan_of_a_later_attempt_is_the_same_with_and_without_the_facts(excluded: set[str]) -> None:
    text = FOUR + "restart: {min_ranks: 1, failure: 3}\nnetwork: {interface: eth0}"
    first = start(1, {"c"}, text)
    assert next_attempt(first, 3, excluded) == start(3, excluded, text)
    assert Plan.from_json(first.to_json()) == first


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 99))
def test_every_rank_has_a_place_and_no_host_is_overfull_without_need(slots: list[int], ranks: int) -> None:
    hosts = [HostSlots(f"n{index}", count) for index, count in enumerate(slots)]
    used = {one.name: one.slots for one in spread(hosts, ranks, oversubscribe=True)}
    assert sum(used.values()) == ranks
    most = -(-ranks // sum(slots))
    assert all(used.get(one.name, 0) <= one.slots * most for one in hosts)


def test_the_server_is_the_last_rank_and_trains_nothing() -> None:
    made = on("server_ranks: 1, ranks: 3")
    assert (made.placement.ranks, made.placement.wanted_ranks, made.placement.server_ranks) == (4, 3, 1)
    assert made.job.server_command == ("/opt/py/bin/python", "-m", "hvdgrab.server")
    assert '"coordinator": "server"' in made.launch.environment["HVDGRAB_GRAB"]
    assert on("ranks: 3").job.server_command == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("grab: {order: grab}\nresources: {ranks: 2}", "job.yaml:2: grab.order: 'grab' orders a single rank"),
        ("resources: {ranks: 1}\ngrab: {order: grab, balance: {damping: 0.5}}", "grab.balance.damping: order 'grab' balances no"),
        ("grab: {designated_rank: 3}\nresources: {ranks: 3}", "job.yaml:2: grab.designated_rank: there is no rank 3"),
        ("grab: {communication: {node_size: 5}}", "grab.communication.node_size: 5 are more than the 4 ranks"),
        ("resources: {time_limit: 1m}\ncheckpoint: {signal: TERM}", "checkpoint.before_limit: is not shorter than"),
        ("restart: {time_limit: 1}", "job.yaml:2: restart.time_limit: there is no resources.time_limit"),
        ("restart: {min_ranks: 9}", "restart.min_ranks: 9 are more than the 4 ranks"),
        ("backend: {extra_args: [--mca, a, b, -np, 9]}", "job.yaml:2: backend.extra_args.3: -np is decided by resources.ranks"),
        (
            "backend: {extra_args: [-genv, A, b]}",
            "-genv is an option of MPICH or Intel MPI, and /opt/mpi/bin/mpirun is Open MPI 4",
        ),
        ("backend: {extra_args: [--prtemca, A, b]}", "--prtemca is an option of Open MPI 5"),
        ("backend: {extra_args: [':']}", ": is decided by the launcher, which starts one program"),
        ("slurm: {nodes: 2}", "resources.ranks: SLURM must be told"),
        ("slurm: {nodes: 2, ranks_per_node: 1}\nresources: {ranks: 4}", "4 ranks do not fit: slurm.nodes: 2 times"),
        ("slurm: {nodes: 8}\nresources: {ranks: 4}", "slurm.nodes: 8 nodes are more than 4 ranks"),
        ("slurm: {}\nresources: {hosts: [a:1]}", "resources.hosts: SLURM chooses the hosts"),
    ],
)
def test_what_the_ranks_or_mpirun_would_refuse_is_refused_while_planning(text: str, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan(f"command: x\n{text}")
    assert message in str(caught.value)


ALLOCATED = {"allocation": 4, "mpirun": None, "horovodrun": None, "cores": 1, "environment": ("PATH", "SLURM_JOB_ID", "PMI_RANK")}


def test_inside_an_allocation_its_places_are_used() -> None:
    made = plan("command: x", **ALLOCATED)
    assert (made.launch.backend, made.launch.scrubbed) == ("srun", ("PMI_RANK",))
    assert (made.placement.ranks, made.placement.oversubscribed) == (4, False)
    assert made.argv[0] == "srun"
    assert plan("command: x\nresources: {ranks: 1}\nslurm: {}", **ALLOCATED).launch.backend == "srun"
    served = plan("command: x\nbackend: {kind: slurm}\nresources: {server_ranks: 1}", **ALLOCATED).placement
    assert served.ranks - served.server_ranks == 3
    local = plan("command: x\nbackend: {kind: local}\nresources: {ranks: 1}", **ALLOCATED)
    assert local.launch.scrubbed == ("PMI_RANK", "SLURM_JOB_ID")
    with pytest.raises(
        PlanError, match="5 ranks do not fit: this allocation of SLURM has room for 4 tasks; use `salloc --ntasks=5`"
    ):
        plan("command: x\nresources: {ranks: 5}", **ALLOCATED)
    assert plan("command: x\nresources: {ranks: 5, oversubscribe: true}", **ALLOCATED).placement.oversubscribed


def test_all_faults_of_a_plan_are_named_at_once() -> None:
    with pytest.raises(PlanError) as caught:
        plan("command: x\ngrab: {order: grab, designated_rank: 7}\nrestart: {min_ranks: 9}")
    assert len(caught.value.problems) == 3


def test_a_slurm_section_sends_the_job_there_unless_another_backend_is_named() -> None:
    text = "command: x\nslurm: {nodes: 2, ranks_per_node: 3, memory: 1GiB}\n"
    made = plan(text, mpirun=None, horovodrun=None)
    assert (made.launch.backend, made.placement.ranks, made.placement.cores) == ("slurm", 6, 4)
    assert made.slurm is not None
    assert (made.slurm.memory, made.slurm.requeue) == (1 << 30, True)
    assert plan(text + "backend: {kind: mpirun}").slurm is None
