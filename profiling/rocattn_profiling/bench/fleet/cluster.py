"""Run jobs on a cluster through submitit: the only file that imports it.

submitit writes the job scripts, transfers the call to the node and keeps the logs. Its job monitoring is not used: it
queries only ``sacct``, every ten minutes, which clusters without an accounting database lack, and assumes that a
preempted job will run again. Here one ``squeue`` lists all jobs, and ``sacct`` only reports how a job ended.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from rocattn.errors import RocattnError, complaint
from rocattn.installed import install_command

if TYPE_CHECKING:
    import submitit

SLURM, LOCAL = "slurm", "local"
KINDS = (SLURM, LOCAL)
ENDED = "ENDED"
"""The state of a finished job if its cluster does not report how it ended."""
_NAME = "rocattn"
_WARNING_S = 60
_ANSWER_S = 60.0
_ENDING_S = 10.0
_PATIENCE_S = 1800.0


class ClusterError(RocattnError):
    """Raised when there is no cluster, or it rejects a job; one line with the remedy."""


class Wanted(NamedTuple):
    """The resources requested by each job.

    Attributes:
        minutes: Time limit.
        gpus: Number of exclusive GPUs.
        threads: CPUs; 0 for the cluster's default.
        options: Additional options of ``sbatch``, without their dashes; True for one without a value.
    """

    minutes: float
    gpus: int = 0
    threads: int = 0
    options: Mapping[str, str | bool] = {}


class State(NamedTuple):
    """A job's state in the cluster's terms, whether it has ended, and why it waits."""

    word: str
    over: bool = False
    why: str = ""


class Cluster:
    """The cluster that runs jobs.

    Attributes:
        pause_s: Time between polls of the jobs.
        same_machine: Whether every job runs on this machine.

    Args:
        logs: Folder for scripts, calls and logs; on Slurm one visible to all nodes.
        wanted: The resources requested by each job.
    """

    pause_s: float
    same_machine: bool

    def __init__(self, logs: Path, wanted: Wanted) -> None:
        self._logs, self._wanted = logs, wanted
        self._executor = self._open()
        self._jobs: dict[str, submitit.Job[None]] = {}

    def _open(self) -> submitit.Executor:
        raise NotImplementedError

    def submit(self, function: Callable[[str], None], argument: str) -> str:
        """Submit a job that calls an importable function; return the job's id.

        Raises:
            ClusterError: When the cluster rejects it.
        """
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        try:
            with contextlib.redirect_stderr(io.StringIO()):  # the error contains the output of sbatch
                job = self._executor.submit(function, argument)
        except (FailedJobError, FailedSubmissionError, OSError) as error:
            raise ClusterError(f"the cluster rejected the job: {_one_line(error)}") from error
        self._jobs[job.job_id] = job
        return job.job_id

    def poll(self, ids: Iterable[str]) -> dict[str, State]:
        """Return the states of jobs, including those submitted by an earlier run."""
        raise NotImplementedError

    def last_words(self, job_id: str) -> str:
        """Return the line of a job's error log with the reason why it ended, or ""."""
        path = self._job(job_id).paths.stderr
        try:
            return complaint(path.read_text(errors="replace"), "")
        except OSError:
            return ""

    def log(self, job_id: str) -> str:
        """Return a job's error log."""
        path = self._job(job_id).paths.stderr
        return path.read_text(errors="replace") if path.exists() else ""

    def cancel(self, job_id: str) -> None:
        """Cancel a job if it has not ended."""
        raise NotImplementedError

    def _job(self, job_id: str) -> submitit.Job[None]:
        if job_id not in self._jobs:
            self._jobs[job_id] = self._attach(job_id)
        return self._jobs[job_id]

    def _attach(self, job_id: str) -> submitit.Job[None]:
        raise NotImplementedError


class LocalCluster(Cluster):
    """Jobs as local processes, run by submitit's local executor; they continue when the submitter dies."""

    pause_s = 0.2
    same_machine = True

    def _open(self) -> submitit.Executor:
        import submitit

        executor = submitit.LocalExecutor(self._logs, python=_python())
        # The warning before the end only needs to come early enough for the job to record it.
        warning_s = min(_WARNING_S, math.ceil(self._wanted.minutes * 60 / 10))
        executor.update_parameters(timeout_min=self._wanted.minutes, signal_delay_s=warning_s)
        return executor

    def _attach(self, job_id: str) -> submitit.Job[None]:
        import submitit

        return submitit.LocalJob(self._logs, job_id)

    def poll(self, ids: Iterable[str]) -> dict[str, State]:
        """Return the states of jobs."""
        return {job_id: self._state(job_id) for job_id in ids}

    def _state(self, job_id: str) -> State:
        word = str(self._job(job_id).state)
        if word == "RUNNING" or (word.startswith("NO PROCESS") and self._controller(job_id)):
            return State("RUNNING")
        return State(ENDED, over=True)

    def _controller(self, job_id: str) -> psutil.Process | None:
        """Return a job's supervisor process; None if it is gone (or its process id was reused)."""
        with contextlib.suppress(psutil.Error, ValueError):
            process = psutil.Process(int(job_id))
            # A process that has only just started has an empty command line; one started here is known.
            its_own = process.ppid() == os.getpid() or str(self._logs) in process.cmdline()
            if its_own and process.status() != psutil.STATUS_ZOMBIE:
                return process
        return None

    def cancel(self, job_id: str) -> None:
        """Interrupt the job's supervisor, which ends the job; then kill what remains of both.

        If it ignores SIGINT, as processes started from a background job do, it forwards SIGTERM to the job.
        """
        process = self._controller(job_id)
        if process is None:
            return
        with contextlib.suppress(psutil.Error):
            family = [process, *process.children(recursive=True)]
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            _, left = psutil.wait_procs(family, timeout=_ENDING_S)
            for each in left:
                with contextlib.suppress(psutil.Error):
                    each.kill()
            psutil.wait_procs(left, timeout=_ENDING_S)
        self.poll([job_id])  # so that Popen does not consider it running


class SlurmCluster(Cluster):
    """Slurm jobs: submitted by ``sbatch``, listed by ``squeue`` and ``sacct``, cancelled by ``scancel``."""

    pause_s = 5.0
    same_machine = False

    def __init__(self, logs: Path, wanted: Wanted) -> None:
        super().__init__(logs, wanted)
        self._last: dict[str, State] = {}
        self._answered = time.monotonic()

    def _open(self) -> submitit.Executor:
        import submitit

        try:
            executor = submitit.SlurmExecutor(self._logs, python=_python())
        except RuntimeError as error:
            remedy = "run this on a login node of the cluster, or try it here with --cluster local"
            raise ClusterError(f"Slurm is not installed here (no srun on PATH): {remedy}") from error
        wanted = self._wanted
        values: dict[str, Any] = {
            "job_name": _NAME, "time": math.ceil(wanted.minutes), "signal_delay_s": _WARNING_S,
            # Without srun the job gets all CPUs of its allocation; a step of Slurm 22.05 and later gets only one.
            "use_srun": False, "ntasks_per_node": 1,
        }  # fmt: skip
        values |= {"gpus_per_node": wanted.gpus} if wanted.gpus else {}
        values |= {"cpus_per_task": wanted.threads} if wanted.threads else {}
        options = {name.replace("-", "_"): value for name, value in wanted.options.items()}
        executor.update_parameters(**values, additional_parameters=options)
        return executor

    def _attach(self, job_id: str) -> submitit.Job[None]:
        import submitit

        return submitit.SlurmJob(self._logs, job_id)

    def poll(self, ids: Iterable[str]) -> dict[str, State]:
        """Return the states of jobs; while the controller does not answer, the last known states.

        Raises:
            ClusterError: When it has not answered for half an hour.
        """
        ids = list(ids)
        done = _ask(["squeue", "--noheader", f"--user={os.getuid()}", "--states=all", "--format=%i|%T|%r"])
        if done is None:
            if time.monotonic() - self._answered > _PATIENCE_S:
                raise ClusterError("squeue has not answered for 30 minutes: the jobs go on; rerun this command later")
            return {job_id: self._last.get(job_id, State("UNKNOWN")) for job_id in ids}
        self._answered = time.monotonic()
        listed = {fields[0]: fields for line in done.splitlines() if len(fields := line.split("|", 2)) == 3}
        states = {}
        for job_id in ids:
            _, word, why = listed.get(job_id, ("", "", ""))
            if word in _LIVE:
                states[job_id] = State(word, why="" if why == "None" else why)
            else:
                states[job_id] = State(word or self._final(job_id), over=True)
        self._last |= states
        return states

    def _final(self, job_id: str) -> str:
        """Return the final state of a job that squeue no longer lists."""
        said = _ask(["sacct", "--noheader", "--allocations", "--parsable2", "--format=State", f"--jobs={job_id}"])
        words = (said or "").split()
        return words[0] if words else ENDED  # no accounting database: the job's files show how it ended

    def cancel(self, job_id: str) -> None:
        """Cancel a job in Slurm."""
        _ask(["scancel", job_id])


# States of a job that may still run, or run again.
_LIVE = {
    "CONFIGURING", "COMPLETING", "PENDING", "RESIZING", "RUNNING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD",
    "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT", "STOPPED", "SUSPENDED",
}  # fmt: skip


def open_cluster(kind: str, logs: Path, wanted: Wanted) -> Cluster:
    """Return a cluster of the given kind (`KINDS`).

    Raises:
        ClusterError: When submitit is not installed, or the cluster is not available.
    """
    try:
        import submitit  # noqa: F401 - checks that it is installed
    except ImportError as error:
        raise ClusterError(f"--engine slurm needs the package submitit: {install_command('submitit')}") from error
    logging.getLogger("submitit").setLevel(logging.ERROR)
    return (SlurmCluster if kind == SLURM else LocalCluster)(logs, wanted)


def _python() -> str:
    """Return how nodes start Python: as here, but without the current folder on the path."""
    return f"{shlex.quote(sys.executable)} -P"


def _ask(command: list[str]) -> str | None:
    """Return the output of a Slurm command; None if it fails or times out."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
