"""The files of a test cluster: ``slurm.conf`` and its companions, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Node:
    """One virtual node: a ``slurmd`` with a name and a port of its own."""

    name: str
    port: int
    hostname: str
    address: str


@dataclass(frozen=True)
class Layout:
    """Where everything of one cluster lies and listens."""

    root: Path
    user: str
    controller: str
    """Host name of the controller, as the daemons see it."""
    controller_address: str
    controller_port: int
    nodes: Sequence[Node]
    cpus: int = 4
    """Cores that each node claims to have, whatever the machine has."""
    database_port: int = 0
    """Port of slurmdbd; 0 for a cluster without accounting."""
    name: str = "hvdgrab"
    munge: Path | None = None
    """Socket of another cluster's munged, which this one uses too; None for its own."""

    @property
    def conf(self) -> Path:
        """slurm.conf; absolute, because a relative one reaches the jobs and their srun then hangs."""
        return self.root / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        """Socket of the cluster's munged."""
        return self.munge or self.root / "munge" / "socket"

    def log(self, name: str) -> Path:
        """Log of one daemon."""
        return self.root / "log" / f"{name}.log"


SLURM_CONF = """\
ClusterName={name}
SlurmctldHost={controller}({controller_address})
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={munge},cred_expire=5
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
TmpFS={root}/tmp-%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd-%n.pid
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,sched_min_interval=0
ReturnToService=2
KillWait=4
MinJobAge=8
MessageTimeout=5
SlurmdTimeout=15
InactiveLimit=0
CompleteWait=0
GresTypes=gpu
{accounting}
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=02:00:00 DefaultTime=00:10:00 PriorityTier=10 State=UP
PartitionName=short Nodes=ALL MaxTime=00:02:00 DefaultTime=00:01:00 PriorityTier=10 State=UP
PartitionName=spare Nodes=ALL MaxTime=02:00:00 DefaultTime=00:10:00 PriorityTier=1 State=UP GraceTime=0
PartitionName=closed Nodes=ALL MaxTime=00:10:00 State=DOWN
"""

WITH_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={munge}
JobCompType=jobcomp/none"""

SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={munge}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
PidFile={root}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct
"""


def slurm_conf(layout: Layout) -> str:
    """``slurm.conf`` of a cluster whose waiting times are short."""
    none = "AccountingStorageType=accounting_storage/none\nJobCompType=jobcomp/none"
    accounting = WITH_ACCOUNTING.format(port=layout.database_port, munge=layout.munge_socket) if layout.database_port else none
    nodes = "\n".join(
        f"NodeName={node.name} NodeHostname={node.hostname} NodeAddr={node.address} Port={node.port} CPUs={layout.cpus}"
        f" CoresPerSocket={layout.cpus} ThreadsPerCore=1 RealMemory=4000 Gres=gpu:2 State=UNKNOWN"
        for node in layout.nodes
    )
    return SLURM_CONF.format(
        name=layout.name,
        controller=layout.controller, controller_address=layout.controller_address, controller_port=layout.controller_port,
        user=layout.user, munge=layout.munge_socket, root=layout.root, accounting=accounting, nodes=nodes,
    )  # fmt: skip


def gres_conf(layout: Layout) -> str:
    """Two pretended GPUs a node, so that scripts that ask for GPUs can be checked by ``sbatch --test-only``."""
    return "".join(f"NodeName={node.name} Name=gpu File={layout.root}/gpu[0-1]\n" for node in layout.nodes)


def slurmdbd_conf(layout: Layout, storage_port: int) -> str:
    """``slurmdbd.conf`` for a MariaDB that listens on ``storage_port``."""
    return SLURMDBD_CONF.format(
        munge=layout.munge_socket, port=layout.database_port, user=layout.user, root=layout.root, storage_port=storage_port
    )
