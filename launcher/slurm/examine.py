"""Asking SLURM about a job before it is submitted, so that a person learns of a mistake before the queue does.

All questions to a cluster run at once and each has a few seconds: where one is not answered, the job is submitted unchecked.
"""

from __future__ import annotations

import getpass
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from launcher.errors import PlanError
from launcher.host.program import Answer
from launcher.jobdir.plan import Plan
from launcher.slurm import fit
from launcher.slurm.answers import NoAnswer
from launcher.slurm.commands import Reach
from launcher.slurm.fit import Finding, Site
from launcher.slurm.script import asked_of, script
from launcher.slurm.site import SINFO_FORMAT, default_partition, names_in, parse_config, parse_partitions, reservations_in

if TYPE_CHECKING:
    from launcher.spec.model import Spec

SECONDS = 5.0
"""Time for each answer."""


@dataclass(frozen=True)
class Examined:
    """What SLURM says of one job."""

    sites: Sequence[Site]
    findings: Sequence[Finding]
    trial: Answer | None = None
    """What ``sbatch --test-only`` has said; None where it was not asked."""

    @property
    def silent(self) -> str | None:
        """Why SLURM could not be asked; None where it could."""
        return next((site.fault for site in self.sites if site.fault is not None), None)

    @property
    def certain(self) -> list[Finding]:
        """What keeps the job from ever running."""
        return [finding for finding in self.findings if finding.certain]

    def warnings(self) -> list[str]:
        """All that people should know, a sentence each."""
        said = [f"{finding.path}: {finding.message}" for finding in self.findings if not finding.certain]
        if self.silent is None:
            return said
        return [*said, f"whether SLURM has all that the job names was not checked, because it could not be asked: {self.silent}"]


class Examiner:
    """Asks for several jobs, of variants perhaps: the same question once."""

    def __init__(self, environment: Mapping[str, str], seconds: float = SECONDS) -> None:
        self._environment = environment
        self._seconds = seconds
        self._sites: dict[str | None, Site] = {}
        self._trials: dict[str, Answer] = {}

    def examine(self, plan: Plan) -> Examined:
        """Ask about a plan whose backend is slurm."""
        clusters = asked_of(plan).clusters
        names: list[str | None] = [*clusters.split(",")] if clusters and clusters.lower() != "all" else [None]
        sites = [self.site(name) for name in names]
        if any(site.fault is not None for site in sites):
            return Examined(sites, [])
        found = _of_clusters([(site, fit.findings(plan, site)) for site in sites])
        trial = self._trial(plan)
        if any(finding.certain for finding in found) or trial.ok:
            return Examined(sites, found, trial)
        if (said := said_in_trial(trial)) is not None:
            refused = fit.refused(said)
            found = [*(finding for finding in found if finding.path != refused.path), refused]
        return Examined(sites, found, trial)

    def site(self, cluster: str | None = None) -> Site:
        """What one cluster has, asked once."""
        if cluster not in self._sites:
            self._sites[cluster] = look(Reach.of(self._environment, cluster), self._seconds)
        return self._sites[cluster]

    def _trial(self, plan: Plan) -> Answer:
        text = script(plan, 1)
        key = "\n".join(line for line in text.splitlines() if line.startswith("#SBATCH") and plan.job.id not in line)
        if key not in self._trials:
            reach = Reach.of(self._environment)
            self._trials[key] = reach.ask(("sbatch", "--test-only"), stdin=text, timeout=self._seconds)
        return self._trials[key]


def _of_clusters(found: Sequence[tuple[Site, Sequence[Finding]]]) -> list[Finding]:
    """SLURM takes one of the clusters, so one in which the job fits is enough; but one that does not exist is a mistake."""
    absent = [finding for site, some in found if site.clusters is not None for finding in some]
    fits = [some for _, some in found if not any(finding.certain for finding in some)]
    if absent or not fits:
        return absent or [_named(site, finding) for site, some in found for finding in some if finding.certain]
    return list(fits[0])


def _named(site: Site, finding: Finding) -> Finding:
    return finding if site.cluster is None else replace(finding, message=f"cluster {site.cluster}: {finding.message}")


def said_in_trial(answer: Answer) -> str | None:
    """Why SLURM would refuse the job, in its own words; None where it does not answer."""
    lines = [line.strip() for line in answer.stderr.splitlines()]
    said = [re.sub(r"^(allocation failure|sbatch: error|sbatch: fatal|sbatch): ", "", line)
            for line in lines if line.startswith(("allocation failure: ", "sbatch: "))]  # fmt: skip
    busy = any(re.search(r"contact|timed out|connect|transmitted|communicat|database", line, re.IGNORECASE) for line in said)
    return None if busy or not said or answer.code is None else "; ".join(dict.fromkeys(said))


def look(reach: Reach, seconds: float = SECONDS) -> Site:
    """Ask one cluster everything at once."""
    questions = {
        "config": ("scontrol", "show", "config"),
        "partitions": ("sinfo", "-a", "-o", SINFO_FORMAT),
        "default": ("sinfo", "-h", "-o", "%P"),
        "reservations": ("scontrol", "show", "reservation"),
    }
    answers = _ask_all(questions, lambda argv: reach.ask(argv, timeout=seconds))
    config = answers["config"]
    if reach.cluster and "no cluster" in config.stderr.lower():
        clusters = _database(reach, seconds, {"clusters": ("show", "cluster", "format=cluster")})["clusters"]
        return Site(reach.cluster, clusters=clusters or ())
    if not config.ok or "ClusterName" not in config.stdout:
        return Site(reach.cluster, fault=config.complaint)
    settings = parse_config(config.stdout)
    try:
        partitions = parse_partitions(answers["partitions"].stdout)
    except NoAnswer as error:
        said = answers["partitions"]
        return Site(reach.cluster, settings, fault=str(error) if said.ok else said.complaint)
    kept = answers["reservations"]
    site = Site(
        reach.cluster, settings, partitions, default_partition(answers["default"].stdout),
        reservations=reservations_in(kept.stdout) if kept.ok else None,
    )  # fmt: skip
    return _accounted(site, reach, seconds) if settings.get("AccountingStorageType", "").endswith("slurmdbd") else site


def _accounted(site: Site, reach: Reach, seconds: float) -> Site:
    """With the accounts of this user, and all QOS.  An administrator, and whoever has no account, may be shown none."""
    name = site.settings.get("ClusterName", "")
    mine = ("show", "assoc", f"user={getpass.getuser()}", f"cluster={name}", "format=account")
    found = _database(reach, seconds, {"accounts": mine, "qos": ("show", "qos", "format=name")})
    return replace(site, accounts=found["accounts"] or None, qos=found["qos"] or None)


def _database(reach: Reach, seconds: float, questions: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...] | None]:
    """What slurmdbd knows, which knows all clusters: names by question, None where it did not answer."""
    central = replace(reach, cluster=None)
    asked = {key: ("sacctmgr", "-n", "-P", *words) for key, words in questions.items()}
    answers = _ask_all(asked, lambda argv: central.ask(argv, timeout=seconds))
    return {key: names_in(answer.stdout) if answer.ok else None for key, answer in answers.items()}


def _ask_all(questions: Mapping[str, Sequence[str]], ask: Callable[[Sequence[str]], Answer]) -> dict[str, Answer]:
    with ThreadPoolExecutor(len(questions)) as pool:
        return dict(zip(questions, pool.map(ask, questions.values()), strict=True))


def check(jobs: Sequence[tuple[Spec, Plan]], environment: Mapping[str, str]) -> list[str]:
    """Ask about jobs that are about to be submitted; those of other backends are left out.

    Returns:
        What people should know, each sentence once.

    Raises:
        PlanError: naming with file, line and key what could never run.
    """
    examiner = Examiner(environment)
    warnings: dict[str, None] = {}
    for spec, plan in jobs:
        if plan.launch.backend != "slurm":
            continue
        examined = examiner.examine(plan)
        if examined.certain:
            raise PlanError([spec.problem(finding.path, finding.message) for finding in examined.certain])
        warnings.update(dict.fromkeys(examined.warnings()))
    return list(warnings)
