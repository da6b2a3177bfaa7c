"""Run the passes of a collection; a failure is recorded and reported, and the rest continues."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

import rocattn
from rocattn.errors import RocattnError
from rocattn.gpu.plan_log import VARIABLE as PLAN_LOG
from rocattn.settings import LINE_TABLES
from rocattn_profiling.base.console import Step
from rocattn_profiling.base.files import HeldError, locked, result_folder, write_text
from rocattn_profiling.base.journal import keeping
from rocattn_profiling.base.process import Ended, StartError, run_group
from rocattn_profiling.profile.collect import diagnose, hardware, scrub, store
from rocattn_profiling.profile.collect.assemble import under_a_profiler
from rocattn_profiling.profile.collect.hardware import Hardware
from rocattn_profiling.profile.collect.launchers import LAUNCHERS, RUN_SCRIPT, PassLaunch
from rocattn_profiling.profile.collect.passes import PASSES, ProfilerPass, split
from rocattn_profiling.profile.collect.symptoms import MISSING, OVER_SUBSCRIBED, UNKNOWN, PassFinding

PLANS = "plans.jsonl"
"""The log of a pass's launch plans, if its application uses `rocattn`; the report looks for this name."""
_READ_BYTES = 1 << 20
_GRACE_S = 10.0


class Session:
    """A collection and its folder.

    Args:
        job: What to run.
        out: The collection's folder.
        examine: Returns the state of the GPUs; called before and after.
        resume: Whether to continue the collection in the folder.
        on_step: Called before and after each pass.
        grace_s: Time for a profiler to write its files after a timeout.
    """

    def __init__(
        self,
        job: store.Job,
        out: Path,
        *,
        examine: Callable[[], Hardware] | None = None,
        resume: bool = False,
        on_step: Callable[[Step], None] = lambda _step: None,
        grace_s: float = _GRACE_S,
    ) -> None:
        self._examine = examine or hardware.examine
        self.job, self.out, self.before = job, out.absolute(), self._examine()
        self._resume, self._on_step, self._grace_s = resume, on_step, grace_s
        self._secrets = scrub.secrets_of({**os.environ, **job.environment}, job.command)
        self._stopped = ""

    def collect(self) -> store.Collection:
        """Run the remaining passes and return the collection; always writes ``profile.json``.

        Raises:
            RocattnError: When the folder cannot be used, or another collection is using it.
        """
        try:
            result_folder(self.out.parent)
            with locked(Path(f"{self.out}.lock"), wait_s=0):
                return self._collect()
        except HeldError as error:
            raise RocattnError(
                f"another rocattn profile is writing to {self.out}: wait, or name another --out"
            ) from error
        except OSError as error:
            raise RocattnError(f"cannot write {self.out}: {error.strerror or error}") from error

    def _collect(self) -> store.Collection:
        self._state = store.open_state(self.out, self.job, resume=self._resume)
        queue = list(self._state.left())
        kept = keeping(
            self.out, len(self._state.passes), lambda: len(self._state.passes) - len(self._state.left()),
            "--resume goes on",
        )  # fmt: skip
        try:
            with kept:
                while queue and not self._stopped:
                    queue[:0] = self._one(queue.pop(0), len(queue))
            self._on_step(Step(len(self._state.passes) - len(queue), len(self._state.passes), ""))
        finally:
            collection = self._collection()
            store.save_profile(self.out, collection)
        return collection

    def _one(self, of_pass: ProfilerPass, left_after: int) -> tuple[ProfilerPass, ...]:
        """Run one pass, record its result, and return its halves if it has too many counters for the hardware."""
        total = len(self._state.passes)
        self._on_step(Step(total - left_after - 1, total, of_pass.name))
        result = self._run(of_pass)
        passes = self._state.passes
        halves = split(of_pass) if any(finding.code == OVER_SUBSCRIBED for finding in result.findings) else None
        if halves:
            result = msgspec.structs.replace(result, status="split")
            at = passes.index(of_pass) + 1
            passes = (*passes[:at], *halves, *passes[at:])
        results = {**self._state.results, of_pass.name: result}
        self._state = msgspec.structs.replace(self._state, passes=passes, results=results)
        store.save_state(self.out, self._state)
        self._stopped = next((f"{of_pass.name}: {finding.line}" for finding in result.findings if finding.stops), "")
        return halves or ()

    def _run(self, of_pass: ProfilerPass) -> store.PassResult:
        """Run the profiler once and return the result."""
        folder = store.fresh_folder(self.out / PASSES / of_pass.name)
        job = self.job
        launch = LAUNCHERS[job.tool.name].launch(job.tool, of_pass, job.command, folder.absolute(), job.output_format)
        _prepare(launch, folder)
        ours = {PLAN_LOG: str((folder / PLANS).absolute())}
        if of_pass.sampling or of_pass.traced:
            ours[LINE_TABLES] = "1"
        try:
            ended = self._start(launch.argv, folder, {**job.environment, **launch.env, **ours})
            text = _output(folder)
            shutil.rmtree(folder / "tmp", ignore_errors=True)
            (folder / RUN_SCRIPT).unlink(missing_ok=True)  # its command line contains secrets
            problems = scrub.scrub_folder(folder, self._secrets)
        except BaseException:  # interrupted: the files are incomplete and not scrubbed
            shutil.rmtree(folder, ignore_errors=True)
            raise
        evidence = diagnose.Evidence(
            tool=job.tool,
            of_pass=of_pass,
            arch=job.plan.arch,
            ended=ended,
            text=text,
            arrived=store.read_pass(folder),
            hardware=self.before,
            torch_rocm=job.torch_rocm,
            free_bytes=_free_bytes(folder),
        )
        if diagnose.needs_control(evidence):
            evidence = dataclasses.replace(evidence, control=self._control(folder))
        findings = [
            *diagnose.diagnose(evidence),
            *(PassFinding("not_scrubbed", text, "keep the folder private", "warning") for text in problems),
        ]
        status = _status(findings)
        if status == "failed":  # not representative of the passes with data
            (folder / PLANS).unlink(missing_ok=True)
        return store.PassResult(
            name=of_pass.name,
            status=status,
            counters=of_pass.counters,
            line=scrub.scrub_text(launch.line, self._secrets),
            ended=ended.how,
            seconds=round(ended.seconds, 3),
            arrived=evidence.arrived,
            findings=tuple(
                msgspec.structs.replace(finding, what=scrub.scrub_text(finding.what, self._secrets))
                for finding in findings
            ),
        )

    def _control(self, folder: Path) -> Ended:
        """Run the application without the profiler, to find out which of the two failed."""
        inside = store.fresh_folder(folder / "without-profiler")
        try:
            ended = self._start(self.job.command, inside, self.job.environment)
        except StartError:
            ended = Ended(127, 0.0)  # a shell's status for a missing program
        scrub.scrub_folder(inside, self._secrets)
        return ended

    def _start(self, argv: tuple[str, ...], folder: Path, environment: dict[str, str]) -> Ended:
        with (folder / "stdout.txt").open("wb") as stdout, (folder / "stderr.txt").open("wb") as stderr:
            ended = run_group(
                argv, env=environment, cwd=Path(self.job.cwd), stdout=stdout, stderr=stderr,
                timeout_s=self.job.timeout_s, grace_s=self._grace_s,
            )  # fmt: skip
        for log in (folder / "stdout.txt", folder / "stderr.txt"):
            if not log.stat().st_size:
                log.unlink()
        return ended

    def _collection(self) -> store.Collection:
        job, state = self.job, self._state
        results = tuple(
            state.results.get(of_pass.name) or store.PassResult(of_pass.name, "missing", of_pass.counters)
            for of_pass in state.passes
        )
        notes = [*job.plan.notes, *self.before.absent]
        if under_a_profiler(job.removed):
            notes.append("rocattn itself runs under a profiler: two at once disturb each other")
        return store.Collection(
            schema=store.SCHEMA,
            rocattn=rocattn.__version__,
            complete=all(result.status in {"done", "split"} for result in results),
            tool=job.tool,
            why=job.why,
            arch=job.plan.arch,
            wanted=job.plan.wanted,
            left_out=job.plan.left_out,
            command=tuple(scrub.scrub_text(word, self._secrets) for word in job.command),
            cwd=scrub.scrub_text(job.cwd, self._secrets),
            output_format=job.output_format,
            passes=results,
            stopped=self._stopped,
            notes=tuple(notes),
            removed=job.removed,
            before=self.before,
            after=self._examine(),
            not_compared=store.not_measured(job.plan.left_out, results, self._stopped),
            kernel=next((each.kernel for each in state.passes if each.kernel), ""),
            launches=next((each.launches for each in state.passes if each.launches), ""),
            gpu=next((each.gpu for each in state.passes if each.gpu is not None), None),
        )


def command_lines(job: store.Job, out: Path) -> list[tuple[ProfilerPass, PassLaunch]]:
    """Return the command line of each pass without writing or running anything."""
    collector = LAUNCHERS[job.tool.name]
    return [
        (
            of_pass,
            collector.launch(
                job.tool, of_pass, job.command, (out / PASSES / of_pass.name).absolute(), job.output_format
            ),
        )
        for of_pass in job.plan.passes
    ]


def _prepare(launch: PassLaunch, folder: Path) -> None:
    """Create the folders and files that a launch needs."""
    try:
        for name in launch.folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RocattnError(f"cannot write {folder}: {error.strerror}") from error
    for name, text in launch.files.items():
        written = write_text(folder / name, text)
        if name == RUN_SCRIPT:
            written.chmod(0o700)


def _status(findings: list[PassFinding]) -> store.PassStatus:
    if any(finding.level == "error" for finding in findings):
        return "failed"
    lacking = {MISSING, UNKNOWN}
    return "partial" if any(finding.code in lacking for finding in findings) else "done"


def _output(folder: Path) -> str:
    """Return the output of a pass: start and end of each stream and of the profiler's logs."""
    logs = [folder / "stderr.txt", folder / "stdout.txt", *sorted(folder.rglob("log.txt"))]
    return "\n".join(_ends_of(log) for log in logs)


def _ends_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            data = file.read(_READ_BYTES)
            if size > 2 * _READ_BYTES:
                file.seek(size - _READ_BYTES)
            data += file.read(_READ_BYTES)
    except OSError:
        return ""
    return data.decode(errors="replace")


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return 1 << 62  # unknown
