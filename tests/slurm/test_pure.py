from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.errors import BackendError, PlanError
from launcher.host.program import Answer
from launcher.jobdir import words
from launcher.jobdir.paths import JobPaths
from launcher.jobdir.plan import Plan
from launcher.plan.facts import Allocation, expand_counts
from launcher.plan.planning import make_plan
from launcher.plan.preflight import OWN_OPTIONS
from launcher.slurm import start_method
from launcher.slurm.causes import answered, cause_of, killed_by, logged, why
from launcher.slurm.commands import SQUEUE_HEADER, NoAnswer, parse_sacct, parse_squeue, parse_submitted, refusal, scrub
from launcher.slurm.script import script
from launcher.slurm.start_method import parse_types
from launcher.slurm.states import STATES, parse_state, reason_in_words
from tests.launcher.helpers import host, mpirun, spec
from tests.real import need

GOLDEN = Path(__file__).parent / "golden"
JOB_ID = "demo-20250102-030405-00ff"


def plan(text: str, attempt: int = 1, folder: str = "/jobs", **facts: object) -> Plan:
    job = JobPaths(Path(folder) / JOB_ID)
    return make_plan(spec("command: python train.py\nbackend: {kind: slurm}\n" + text), host(**facts), job, attempt)


SMALL = "resources: {ranks: 2}"
FULL = """
resources: {ranks: 8, threads_per_rank: 3, time_limit: 90m, gpus_per_rank: 1}
slurm:
  partition: gpu
  account: physics
  qos: long
  constraint: "a100&ib"
  reservation: school
  nodes: 2
  ranks_per_node: 4
  memory: 8GiB
  exclude: n7
  clusters: east
  requeue: false
  extra: [--mail-type=END, "--gres=tmp:1"]
  prologue: [module load openmpi, source venv/bin/activate]
"""


@pytest.mark.parametrize(("name", "text", "facts"), [("small", SMALL, {}), ("full", FULL, {"package_root": "/opt/a b"})])
def test_the_script_is_the_golden_one(name, text, facts):
    assert script(plan(text, **facts), 3) == (GOLDEN / f"{name}.sh").read_text()


@pytest.mark.parametrize("text", [SMALL, FULL])
def test_every_script_is_clean_shell(text, tmp_path):
    need("shellcheck", shutil.which("shellcheck") is not None)
    file = tmp_path / "job.sh"
    file.write_text(script(plan(text, folder="/it's a \"dir\" $HOME `x`"), 1))
    command = ["shellcheck", "-e", "SC1090,SC1091,SC2016", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout


def test_bad_nodes_of_the_policy_and_of_the_user_are_excluded_once():
    planned = make_plan(spec("command: a\nbackend: {kind: slurm}\n" + SMALL + "\nslurm: {exclude: 'n1,n2'}"), host(),
                        JobPaths(Path("/jobs") / JOB_ID), 2, ("n2", "n9"))  # fmt: skip
    (line,) = [line for line in script(planned, 2).splitlines() if "--exclude" in line]
    assert set(line.partition("=")[2].strip('"').replace(",n2,n2", ",n2").split(",")) == {"n1", "n2", "n9"}


@pytest.mark.parametrize("option", sorted(OWN_OPTIONS))
def test_options_that_the_launcher_depends_on_are_refused_with_what_to_use(option):
    with pytest.raises(PlanError, match=rf"slurm.extra.0: {option} is set by the launcher: "):
        script(plan(SMALL + f"\nslurm: {{extra: ['{option}=x']}}"), 1)


def test_the_table_of_states_is_complete_and_reads_what_slurms_programs_print():
    manual = {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "CONFIGURING", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PENDING", "PREEMPTED", "RUNNING", "RESV_DEL_HOLD", "REQUEUE_FED", "REQUEUE_HOLD", "REQUEUED", "RESIZING", "REVOKED",
        "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SUSPENDED", "TIMEOUT", "LAUNCH_FAILED", "RECONFIG_FAIL",
        "POWER_UP_NODE", "UPDATE_DB", "EXPEDITING",
    }  # fmt: skip
    assert set(STATES) == manual
    assert parse_state("CANCELLED by 1000") is parse_state("CA") is parse_state("CANCELLED+") is STATES["CANCELLED"]
    assert parse_state("SLEEPING") is parse_state("") is None
    over = {name for name, state in STATES.items() if state.phase == "over"}
    assert {name for name in over if cause_of(STATES[name]) is None} == {"COMPLETED", "REVOKED"}


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Resources", "until enough is free"), ("(JobHeldUser)", "release"), ("JobHeldAdmin", "administrator"),
        ("DependencyNeverSatisfied", "never start"), ("PartitionNodeLimit", "more nodes"), ("PartitionConfig", "more nodes"),
        ("PartitionTimeLimit", "time_limit"), ("QOSMaxJobsPerUserLimit", "reached a limit"), ("AssocGrpCpuLimit", "limit"),
        ("QOSMaxCpuPerJobLimit", "never start"), ("ReqNodeNotAvail, UnavailableNodes:n1", "down"), ("Whatever", "Whatever"),
        ("launch failed requeued held", "could not be launched"),
        ("", "none given"),
    ],
)  # fmt: skip
def test_reasons_for_waiting_have_words(reason, words):
    assert words in reason_in_words(reason)


HEAD = "JOBID|STATE|REASON|PARTITION|NODELIST|NAME|COMMENT\n"


def test_an_answer_without_its_heading_is_none():
    assert parse_squeue(HEAD) == {}
    for text in ("", "\n", "garbage", HEAD[:20], HEAD + "12|RUNN", HEAD + "12|SLEEPING|None|p|n1|a|b", "slurm 19\n" + HEAD):
        with pytest.raises(NoAnswer):
            parse_squeue(text)


def test_rows_of_arrays_and_heterogeneous_jobs_are_read_and_comments_may_hold_anything():
    text = HEAD + "12_[1-5%2]|PENDING|Resources|p||a|x\n12_7|RUNNING|None|p|n1|a|x|y|z\n13+1|RUNNING|None|p|n2|a|(null)\n"
    rows = parse_squeue("CLUSTER: east\n" + text)
    assert rows["12_7"].comment == "x|y|z"
    assert rows["13+1"].state is STATES["RUNNING"]
    assert "pending in partition p" in rows["12_[1-5%2]"].detail


@given(st.text(max_size=200))
def test_no_text_is_taken_for_an_answer_or_ends_in_another_error(text):
    for parse in (parse_squeue, parse_sacct, parse_submitted):
        try:
            parse(text)
        except NoAnswer:
            continue
        assert parse is parse_submitted
        assert any(character.isdigit() for character in text)


def test_the_job_id_is_found_behind_what_a_site_prints():
    assert parse_submitted("Welcome!\n77;east\n") == ("77", "east")
    assert parse_submitted("78") == ("78", None)


@pytest.mark.parametrize(
    ("stderr", "certain"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition name specified", True),
        ("sbatch: error: Batch job submission failed: Requested node configuration is not available", True),
        ("sbatch: unrecognized option '--foo'", True),
        ("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", False),
        ("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)", False),
        ("sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received", False),
        ("sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates policy", False),
        ("sbatch: error: Batch job submission failed: Slurm temporarily unable to accept job, sleeping and retrying", False),
        ("sbatch: error: No cluster 'x' known by database.\nsbatch: error: 'x' can't be reached now, or it is invalid", True),
        ("sbatch: error: 'x' can't be reached now, or it is an invalid entry for --cluster.", False),
        ("Segmentation fault", False), ("", False),
    ],
)  # fmt: skip
def test_only_a_clear_refusal_counts_as_one(stderr, certain):
    assert (refusal(stderr) is not None) is certain


def test_the_environment_of_a_call_holds_nothing_of_an_outer_job():
    outer = {"SLURM_CONF": "/c", "SLURM_JOB_ID": "1", "SBATCH_TIMELIMIT": "1", "PMIX_RANK": "2", "OMPI_COMM_WORLD_RANK": "3",
             "SQUEUE_FORMAT": "%i", "HOME": "/h", "OMPI_MCA_btl": "tcp"}  # fmt: skip
    assert scrub(outer) == {"SLURM_CONF": "/c", "HOME": "/h", "OMPI_MCA_btl": "tcp"}


def allocated(**changes: str) -> dict[str, str]:
    return {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_TASKS_PER_NODE": "2(x2)",
            "SLURM_JOB_CPUS_PER_NODE": "4,2", **changes}  # fmt: skip


def test_the_allocation_is_read_from_the_environment():
    found = Allocation.from_environment(allocated(SLURM_RESTART_COUNT="3", SLURM_STEP_ID="0"))
    assert found == Allocation("7", ("n1", "n2"), (2, 2), (4, 2), in_step=True, restarts=3)
    assert Allocation.from_environment({}) is None
    assert Allocation.from_environment(allocated(SLURM_TASKS_PER_NODE="2(x3)")) is None
    batch = Allocation.from_environment(allocated(SLURM_STEP_ID="4294967291"))
    assert batch is not None
    assert not batch.in_step


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=1, max_size=5))
def test_counts_per_node_are_expanded(pairs):
    text = ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in pairs)
    wanted = tuple(number for number, times in pairs for _ in range(times))
    assert expand_counts(text, len(wanted), 0) == wanted


def test_types_of_pmi_are_read_in_every_shape():
    assert parse_types("MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\nspecific pmix plugin versions available: pmix_v4\n") == (
        "pmix", "none", "pmi2")  # fmt: skip
    assert parse_types("srun: MPI types are...\nsrun: pmi2\nsrun: pmix_v3\n") == ("pmi2", "pmix_v3")


ALLOCATION = Allocation("7", ("n1", "n2"), (2, 2), (4, 4), in_step=False, restarts=0)


def chosen(worlds: dict[str, str], wanted: str = "auto", found: bool = True, monkeypatch=None) -> start_method.StartMethod:
    monkeypatch.setattr(start_method, "find_mpirun", lambda environment, given: mpirun() if found else None)

    def call(argv):
        if argv[1] == "--mpi=list":
            return Answer(0, "MPI plugin types are...\n\tpmix\n\tpmi2\n", "")
        kind = argv[1].partition("=")[2]
        return Answer(0, worlds[kind], "") if kind in worlds else Answer(1, "", f"srun: error: no {kind}")

    return start_method.choose(ALLOCATION, {}, "python", wanted, call=call)


def test_the_way_is_what_gives_all_processes_one_world(monkeypatch):
    assert chosen({"pmix": "world 2\nworld 2\n"}, monkeypatch=monkeypatch).mpi == "pmix"
    alone = {"pmix": "world 1\nworld 1\n"}
    assert chosen({**alone, "pmi2": "noise\nworld 2\nworld 2\n"}, monkeypatch=monkeypatch).mpi == "pmi2"
    way = chosen(alone, monkeypatch=monkeypatch)
    assert (way.program, way.reason) == ("mpirun", "Open MPI 4.1.8; srun does not do: pmix, pmi2")
    assert chosen({"pmix": "world 2\nworld 2\n"}, "mpirun", monkeypatch=monkeypatch).program == "mpirun"
    both = "--mpi=pmix: 2 processes found world 1; --mpi=pmi2: srun: error: no pmi2.*module load"
    with pytest.raises(BackendError, match=both):
        chosen(alone, found=False, monkeypatch=monkeypatch)
    with pytest.raises(BackendError, match="--mpi=pmi2: srun: error: no pmi2"):
        chosen(alone, "pmi2", monkeypatch=monkeypatch)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("slurmstepd-n1: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T21:18:43 DUE TO PREEMPTION ***", words.PREEMPTION),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T21:18:43 DUE TO JOB REQUEUE ***", words.PREEMPTION),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T21:18:43 DUE TO TIME LIMIT ***", words.TIME_LIMIT),
        ("error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T21:18 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***", words.LOST_NODE),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T21:18:43 ***", words.CANCELLED),
        ("slurmstepd: error: *** JOB 71 ON n1 CANCELLED AT 2026-11-29T21:18:43 ***", None),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-29T21:18:43 DUE TO THE MOON ***", None),
    ],
)
def test_slurms_own_line_says_why_a_job_ends(line, cause):
    said = logged(f"before\n{line}\nafter\n", "7")
    assert (said.cause if said else None) == cause


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        ("JobState=RUNNING Reason=None Restarts=0 PreemptTime=None", None),
        ("JobState=RUNNING Restarts=0 PreemptTime=2026-11-29T21:18:43", words.PREEMPTION),
        ("JobState=COMPLETING Restarts=1 PreemptTime=None", words.PREEMPTION),
        ("JobState=COMPLETING Restarts=0", words.CANCELLED),
        ("JobState=CANCELLED Restarts=0", words.CANCELLED), ("JobState=TIMEOUT", words.TIME_LIMIT),
        ("JobState=NODE_FAIL", words.LOST_NODE), ("JobState=PENDING Restarts=1", words.PREEMPTION),
        ("JobState=CONFIGURING Restarts=0", None), ("JobState=OUT_OF_MEMORY", words.FAILURE),
    ],
)  # fmt: skip
def test_what_scontrol_says_is_a_cause(fields, cause):
    answer = Answer(0, f"JobId=7 JobName=a {fields}\n", "")
    request = why("7", "", lambda: answer, restarts=0)
    assert (request.cause if request else None) == cause


def test_the_signal_that_ended_a_batch_script_has_its_name():
    said = Answer(0, "JobId=64 JobState=FAILED Reason=RaisedSignal:9(Killed) ExitCode=0:9 DerivedExitCode=0:0", "")
    assert killed_by(said) == "SIGKILL"
    for code in ("ExitCode=1:0", "ExitCode=0:999", "ExitCode=", ""):
        assert killed_by(Answer(0, f"JobState=FAILED {code}", "")) is None
    assert killed_by(Answer(1, "", "slurm_load_jobs error")) is None


def test_only_a_job_that_makes_no_progress_has_a_note():
    rows = parse_squeue(f"{SQUEUE_HEADER}\n1|RUNNING|None|main|n1|a|\n2|SUSPENDED|None|main|n1|a|\n3|PENDING|Priority|main||a|\n")
    assert [rows[number].note for number in "123"] == [None, "job 2 is suspended", None]


def test_no_answer_of_scontrol_is_no_cause():
    for answer in (Answer(1, "", "slurm_load_jobs error: Unable to contact"), Answer(None, "", "no answer"), Answer(0, "", "")):
        assert answered(answer, 0) is None


def test_plans_of_slurm_survive_their_file():
    planned = plan(FULL)
    assert Plan.from_json(planned.to_json()) == planned
    assert json.loads(planned.to_json())["slurm"]["nodes"] == 2
