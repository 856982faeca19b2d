from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.errors import SpecError
from launcher.spec.model import Spec
from tests.launcher.helpers import load_text, spec

EVERYTHING = """\
command: [python, train.py]
resources:
  ranks: 6
  time_limit: 1:30:00
  hosts: ["n[1-2]:2", big]
  ssh: {user: me, port: 2222, identity: ~/.ssh/key, options: StrictHostKeyChecking=yes}
  gpus_per_rank: 1
backend: {kind: mpirun, mpirun: /opt/mpi/bin/mpirun}
network:
  interface: eth0
  ucx_devices: [mlx5_0:1, mlx5_1:1]
  ucx_transports: rc,sm
  nccl_ib_disable: true
  nccl_socket_ifname: ib0
  nccl_debug: WARN
  horovod: {CYCLE_TIME: 0.5, HOROVOD_FUSION_THRESHOLD: 010}
checkpoint: {signal: SIGUSR1, before_limit: 5m, require_finished: true}
restart:
  failure: 3
  hang: unlimited
  hang_after: 20m
  backoff: 500ms
  jitter: 0
  permanent_exit_codes: [2, 64]
  min_ranks: 2
priority: 5
depends_on: other-job
group: series
slurm:
  partition: gpu
  memory: 8GiB
  exclude: [n7, "m[1-2]"]
  clusters: a
  extra: [--exclusive]
  prologue: |
    module load openmpi
    source env.sh
"""


def fault(text: str, *overrides: str) -> str:
    with pytest.raises(SpecError) as caught:
        spec(text, *overrides)
    return str(caught.value)


def test_every_section_arrives_in_plain_units() -> None:
    loaded = spec(EVERYTHING)
    assert (loaded.resources.time_limit, loaded.resources.hosts) == (5400.0, ["n[1-2]:2", "big"])
    assert loaded.resources.ssh.options == ["StrictHostKeyChecking=yes"]
    assert (loaded.network.ucx_devices, loaded.network.ucx_transports) == ("mlx5_0:1,mlx5_1:1", "rc,sm")
    assert loaded.network.horovod == {"HOROVOD_CYCLE_TIME": "0.5", "HOROVOD_FUSION_THRESHOLD": "010"}
    assert (loaded.checkpoint.signal, loaded.checkpoint.before_limit, loaded.checkpoint.require_finished) == ("USR1", 300.0, True)
    plain = loaded.restart.model_dump()
    assert (plain["failure"], plain["hang"], plain["preemption"], plain["lost_node"]) == (3, "unlimited", "unlimited", 0)
    assert (plain["hang_after"], plain["backoff"], plain["backoff_most"], plain["fast_failure"]) == (1200.0, 0.5, 600.0, 60.0)
    assert (loaded.depends_on, loaded.group, loaded.priority) == (["other-job"], "series", 5)
    assert loaded.slurm is not None
    assert (loaded.slurm.memory, loaded.slurm.exclude, loaded.slurm.requeue) == (8 << 30, "n7,m[1-2]", True)
    assert loaded.slurm.prologue == ["module load openmpi", "source env.sh"]


def test_the_frozen_copy_of_every_section_is_the_same_spec_with_the_same_digest() -> None:
    first = spec(EVERYTHING)
    again = load_text(first.frozen_text(), "spec.yaml")
    assert again == first
    assert again.sha256 == first.sha256 != spec(EVERYTHING, "priority=6").sha256
    assert Spec.model_validate(again.model_dump(mode="json", exclude_none=True), strict=True) == first


@pytest.mark.parametrize("section", ["resources", "network", "checkpoint", "restart", "variants", "depends_on", "slurm", "group"])
def test_an_empty_section_means_its_defaults(section: str) -> None:
    assert spec(f"command: x\n{section}:\n") == spec("command: x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resources:\n  time_limit: 90", "job.yaml:3: resources.time_limit: 90 of what?"),
        ("resources:\n  time_limit: 0s", "job.yaml:3: resources.time_limit: must be greater than 0"),
        ("resources:\n  time_limit: 1:30", "1:30 may mean hours or minutes"),
        ("resources:\n  hosts: [n1, 'n[2-']", "job.yaml:3: resources.hosts.1: a bracket is not closed"),
        ("resources:\n  hosts: [a]\n  hostfile: x", "job.yaml:4: resources.hostfile: hosts say too where the job runs"),
        ("resources:\n  hostfile: /nowhere/hosts", "job.yaml:3: resources.hostfile: /nowhere/hosts cannot be read: No such file"),
        ("version: true", "job.yaml:2: version: must be a whole number"),
        ("resources: {server_ranks: true}", "resources.server_ranks: must be a whole number"),
        ("resources: {server_ranks: 1.0}", "resources.server_ranks: must be a whole number: write 1"),
        ("resources: {server_ranks: 2}", "resources.server_ranks: must be one of 0 or 1"),
        ("resources:\n  ssh: {port: 0}", "resources.ssh.port: must be greater than or equal to 1"),
        ("resources:\n  ssh: {user: '-x'}", "resources.ssh.user: must be one word"),
        ("resources: {ssh: {pasword: x}}", "resources.ssh.pasword: unknown key; valid here: user, port"),
        ("network: {interface: 'eth0; id'}", "network.interface: must be one word without spaces"),
        ("network: {nccl_ib_disable: 1}", "network.nccl_ib_disable: must be true or false (given: 1): write true"),
        ("network: {nccl_debug: info}", "network.nccl_debug: must be one of VERSION, WARN, INFO or TRACE"),
        ("network: {horovod: {RANK: 1}}", "network.horovod.RANK: HOROVOD_RANK is set by Horovod itself"),
        ("checkpoint: {signal: KILL}", "checkpoint.signal: must be one of USR1, USR2, TERM, INT, HUP, CONT, or null"),
        ("checkpoint: {before_limt: 1m}", "did you mean 'before_limit'?"),
        ("restart: {failure: -1}", "restart.failure: must be a whole number from 0 to 1000000, or unlimited"),
        ("restart: {failure: always}", "restart.failure: must be a whole number from 0 to 1000000, or unlimited"),
        ("restart:\n  failure: 1\n  hang: 1", "job.yaml:4: restart.hang: needs restart.hang_after"),
        ("restart: {backoff: 20m}", "restart.backoff: is longer than backoff_most"),
        ("restart: {jitter: 2}", "restart.jitter: must be less than or equal to 1"),
        ("restart: {permanent_exit_codes: [256]}", "restart.permanent_exit_codes.0: must be less than or equal to 255"),
        ("priority: 1e3", "priority: must be a whole number (given: 1000.0): write 1000"),
        ("depends_on: ['a b']", "depends_on.0: must be a job's name or id"),
        ("slurm:\n  partion: x", "job.yaml:3: slurm.partion: unknown key; did you mean 'partition'?"),
        ("slurm: {memory: 8G}", "slurm.memory: 8G: write 8GiB (1024-based, as schedulers count)"),
        ("slurm: {extra: [exclusive]}", "slurm.extra.0: must be an option, such as --exclusive"),
        ('slurm: {extra: ["--a\\nb"]}', "slurm.extra.0: must be a single line"),
        ('slurm: {partition: "a\\n#SBATCH -n 9"}', "slurm.partition: must be one word"),
        ("slurm: {nodes: 0}", "slurm.nodes: must be greater than or equal to 1"),
        ("slurm: [x]", "slurm: must be a mapping of settings"),
        ("grab:\n  coordinator: server", "job.yaml:3: grab.coordinator: 'server' needs a process that does not train"),
        (
            "grab: {coordinator: sharded}\nresources: {server_ranks: 1}",
            "job.yaml:3: resources.server_ranks: is for grab.coordinator",
        ),
        ("env: {HOROVOD_A: 1}\nnetwork: {horovod: {A: 2}}", "HOROVOD_A is under env and under network.horovod"),
    ],
)
def test_wrong_sections_name_line_path_and_remedy(text: str, message: str) -> None:
    assert message in fault(f"command: x\n{text}")


@pytest.mark.parametrize(
    ("setting", "found"),
    [
        ("resources.time_limit=01:30:00", 5400.0),
        ("resources.hosts=[a:2, b]", ["a:2", "b"]),
        ("resources.hosts=n[1-2]:2", ["n[1-2]:2"]),
        ("network.horovod.CYCLE_TIME=010", {"HOROVOD_CYCLE_TIME": "010"}),
        ("checkpoint.signal=USR2", "USR2"),
        ("checkpoint.signal=null", None),
        ("resources.time_limit=null", None),
        ("restart.preemption=3", 3),
        ("restart.permanent_exit_codes=[]", []),
        ("slurm.prologue=[module load a, b]", ["module load a", "b"]),
        ("grab.compression.ratio=0.5", 0.5),
        ("grab.reorder.first=2", 2),
        ("depends_on=[a, b]", ["a", "b"]),
    ],
)
def test_every_section_can_be_set_from_the_command_line(setting: str, found: Any) -> None:
    text = "command: x\ncheckpoint: {signal: TERM}\ngrab: {compression: topk, reorder: 2}\n"
    loaded: Any = spec(text, setting)
    for key in setting.partition("=")[0].split("."):
        if isinstance(loaded, dict):
            break
        loaded = getattr(loaded, key)
    assert loaded == found


def test_what_a_short_form_stands_for_survives_an_override_beside_it() -> None:
    loaded = spec("command: x\ngrab: {compression: topk, reorder: 2}", "grab.compression.ratio=0.5", "grab.reorder.last=9")
    assert (loaded.grab.compression.kind, loaded.grab.compression.ratio) == ("topk", 0.5)
    assert (loaded.grab.reorder.every, loaded.grab.reorder.last) == (2, 9)


@pytest.mark.parametrize("value", ["on", "yes", "NO", "Off", "y", "'true'", "1"])
def test_truth_values_of_other_yaml_readers_are_refused_with_what_to_write(value: str) -> None:
    wanted = "true" if value.strip("'").lower() in ("on", "yes", "y", "true", "1") else "false"
    assert f"must be true or false (given: {value if value == '1' else repr(value.strip(chr(39)))}): write {wanted}" in fault(
        f"command: x\nresources: {{oversubscribe: {value}}}"
    )


@pytest.mark.parametrize(
    ("value", "remedy"),
    [("1_000", "write 1000"), ("0x10", "write 16"), ("0o17", "write 15"), ("0b11", "write 3"), ("1e3", "write 1000"),
     ("1:30", "colons make no number"), ("010", "write it without the leading zero"), (".5", ""), ("'4'", ""), (".inf", "")],
)  # fmt: skip
@pytest.mark.parametrize("setting", ["resources: {ranks: %s}", "grab: {seed: %s}", "restart: {failure: %s}", "priority: %s"])
def test_numbers_of_other_yaml_readers_are_refused_with_what_to_write(setting: str, value: str, remedy: str) -> None:
    assert remedy in fault(f"command: x\n{setting % value}")


def test_a_hostfile_becomes_part_of_the_spec(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=2\nb:3\n")
    loaded = spec(f"command: x\nresources: {{hostfile: {file}}}")
    assert (loaded.resources.hosts, loaded.resources.hostfile) == (["a:2", "b:3"], None)
    file.write_text("a slots=2\nb:0\n")
    assert fault(f"command: x\nresources: {{hostfile: {file}}}").startswith(f"{file}:2: slots must be")


def test_two_names_of_one_horovod_variable_are_refused() -> None:
    assert "network.horovod" in fault("command: x\nnetwork: {horovod: {CYCLE_TIME: 1, HOROVOD_CYCLE_TIME: 2}}")
