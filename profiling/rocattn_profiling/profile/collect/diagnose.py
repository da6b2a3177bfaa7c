"""Diagnose a pass from its exit status, output and files: one line per problem, with the remedy.

Exit status 0 does not imply data, and a profiler failure looks like an application failure, so all evidence is
combined. If that does not show which of the two failed, the application is run once without the profiler.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from rocattn.errors import signal_name
from rocattn_profiling.profile.collect.find import Tool
from rocattn_profiling.profile.collect.hardware import Hardware
from rocattn_profiling.profile.collect.symptoms import (
    ALL_ZERO,
    APP_FAILED,
    HANGS,
    MISSING,
    MIXED,
    NO_DATA,
    PROFILER_BREAKS,
    SYMPTOMS,
    UNKNOWN,
    PassFinding,
)

if TYPE_CHECKING:
    from rocattn_profiling.base.process import Ended
    from rocattn_profiling.profile.collect.passes import ProfilerPass
    from rocattn_profiling.profile.collect.store import PassOutput

_LOW_DISK_BYTES = 1 << 20


@dataclass(frozen=True)
class Evidence:
    """The evidence about a completed pass.

    Attributes:
        tool: The profiler.
        of_pass: The requested pass.
        arch: The GPU's architecture.
        ended: How the profiler process ended.
        text: Its output, stdout and stderr.
        arrived: The data in its files.
        hardware: The GPUs before the pass.
        torch_rocm: The ROCm release of the application's torch, or "".
        free_bytes: Free disk space.
        control: How the application ended without a profiler, if that was run.
    """

    tool: Tool
    of_pass: ProfilerPass
    arch: str
    ended: Ended
    text: str
    arrived: PassOutput
    hardware: Hardware
    torch_rocm: str = ""
    free_bytes: int = 1 << 40
    control: Ended | None = None


def diagnose(evidence: Evidence) -> list[PassFinding]:
    """Return the problems of a pass, the most informative first."""
    printed = list(_symptoms(evidence))
    if _whole(evidence):  # then an alarming line is only a warning, or output of the application
        printed = [msgspec.structs.replace(finding, level="warning", stops=False) for finding in printed]
    explained = any(finding.level == "error" for finding in printed)
    findings = [*printed, *_ending(evidence, explained=explained)]
    if not any(finding.level == "error" for finding in findings):
        findings += _data(evidence, unknown=any(finding.code == UNKNOWN for finding in printed))
    if (
        findings
        and evidence.free_bytes < _LOW_DISK_BYTES
        and not any(finding.code == "disk_full" for finding in findings)
    ):
        full = next(text for text in SYMPTOMS if text.code == "disk_full")
        findings.insert(0, PassFinding(full.code, full.what, full.remedy, stops=True))
    return findings


def _whole(evidence: Evidence) -> bool:
    """Return whether the pass succeeded and wrote all requested counters."""
    has_all = all(evidence.arrived.has(name) for name in evidence.of_pass.counters)
    sampled = evidence.arrived.samples > 0 or not (evidence.of_pass.sampling or evidence.of_pass.traced)
    return evidence.ended.status == 0 and evidence.arrived.dispatches > 0 and has_all and sampled


def needs_control(evidence: Evidence) -> bool:
    """Return whether only a run without the profiler can show which of the two failed."""
    if evidence.ended.status == 0 or evidence.control is not None:
        return False
    return not any(finding.level == "error" for finding in _symptoms(evidence))


def _symptoms(evidence: Evidence) -> Iterator[PassFinding]:
    """Return the findings from the output, one per code."""
    codes = set()
    for rule in SYMPTOMS:
        matches = re.finditer(rule.pattern, evidence.text)
        match = next((candidate for candidate in matches if not rule.of_arch or candidate[1] == evidence.arch), None)
        if match is None or rule.code in codes:
            continue
        codes.add(rule.code)
        what = rule.what.format(match[0], *(group or "" for group in match.groups()))
        if rule.code == UNKNOWN and match.lastindex == 3:
            asked, known = _counters_in(match[2]), _counters_in(match[3])
            what = f"{what}: {', '.join(name for name in asked if name not in known)}"
        yield PassFinding(rule.code, what, rule.remedy, rule.level, rule.stops)


def _counters_in(text: str) -> list[str]:
    """Return the distinct counters in a list printed by rocprofv3, without their devices."""
    return list(dict.fromkeys(name.partition(":device=")[0] for name in text.split(", ")))


def _ending(evidence: Evidence, *, explained: bool) -> Iterator[PassFinding]:
    """Return the findings from the exit status, given how the application ends without a profiler."""
    ended, control = evidence.ended, evidence.control
    if ended.status == 0:
        return
    if ended.status is None:
        if control is not None and control.status is None:
            yield PassFinding(
                HANGS, f"the command itself runs longer than {control.seconds:.0f} s", "give it more time (--timeout)",
                stops=True,
            )  # fmt: skip
        else:
            clash = _release_clash(evidence)
            alone = (
                f"; without the profiler it takes {control.seconds:.1f} s" if control and control.status == 0 else ""
            )
            yield PassFinding(
                MIXED if clash else HANGS,
                f"the pass ran longer than {ended.seconds:.0f} s and was killed{alone}",
                clash or "give it more time (--timeout), or profile a shorter command",
                stops=control is not None,
            )
        return
    if explained:
        return
    if control is not None and control.status != 0:
        yield PassFinding(
            APP_FAILED, f"the command itself fails ({control.how}), also without a profiler", "make it run first",
            stops=True,
        )  # fmt: skip
    elif control is not None:
        signals = re.findall(r"rocprofv3(?:_error_signal_handler)? caught signal (\d+)", evidence.text)
        by = f" (the profiler caught signal {signals[-1]}, {signal_name(int(signals[-1]))})" if signals else ""
        clash = _release_clash(evidence)
        yield PassFinding(
            MIXED if clash else PROFILER_BREAKS,
            f"the command runs alone but fails under {evidence.tool.name} ({ended.how}{by and by})",
            clash or "try another profiler (--tool) or release; see the end of the pass's log",
            stops=bool(clash) or not evidence.of_pass.counters,
        )
    else:
        fatal = re.search(r"Fatal error: ([^\n]*)", evidence.text)
        said = f": {fatal[1][:200]}" if fatal else ""
        yield PassFinding(
            "profiler_failed", f"{evidence.tool.name} failed ({ended.how}){said}", "see the log of the pass"
        )


def _data(evidence: Evidence, *, unknown: bool) -> Iterator[PassFinding]:
    """Return the findings from the files: no data, too little, or zeros; ``unknown`` counters are reported already."""
    arrived, of_pass, hardware = evidence.arrived, evidence.of_pass, evidence.hardware
    if arrived.unread:
        yield PassFinding("unread", f"reading the files failed ({arrived.unread})", "they are kept: please report it")
        return
    if not arrived.dispatches:
        if hardware.kfd == "no permission":
            yield PassFinding(
                "no_permission", "no data: this user may not open /dev/kfd",
                "sudo usermod -aG render,video $USER, then log in again", stops=True,
            )  # fmt: skip
            return
        if hardware.kfd == "missing":
            yield PassFinding(
                NO_DATA, "no data: there is no /dev/kfd here", stops=True,
                remedy="load the amdgpu driver; a container needs --device /dev/kfd --device /dev/dri",
            )  # fmt: skip
            return
        clash = _release_clash(evidence)
        wrote = f"{evidence.tool.name} ended well but wrote no dispatch"
        if unknown:
            yield PassFinding(
                NO_DATA, f"{wrote}: it knows none of these counters", "name others, or use a newer release"
            )
        else:
            unreadable = next(iter(arrived.problems), "")
            why = clash or unreadable or "check that the command launches a kernel on this GPU, and waits for it"
            yield PassFinding(MIXED if clash else NO_DATA, wrote, why, stops=bool(clash) or not of_pass.counters)
        return
    if of_pass.sampling and not arrived.samples:
        yield PassFinding(
            NO_DATA, "kernels ran, but no sample was taken",
            f"let them run longer, or sample more often: --pc-sampling-interval below {of_pass.interval}",
        )  # fmt: skip
        return
    if of_pass.traced and not arrived.samples:
        yield PassFinding(
            NO_DATA, "kernels ran, but no instruction was traced",
            next(iter(arrived.problems), "launch more blocks, so that a wave runs on the traced compute unit"),
        )  # fmt: skip
        return
    missing = [name for name in of_pass.counters if not arrived.has(name)]
    if missing and not unknown:
        yield PassFinding(
            MISSING,
            f"the profiler did not write {', '.join(missing)}",
            f"they do not exist for {evidence.arch} in this release: see rocprofv3 --list-avail",
            "error" if len(missing) == len(of_pass.counters) else "warning",
        )
    yield from _zeros(evidence)


def _zeros(evidence: Evidence) -> Iterator[PassFinding]:
    """Return the findings about counters that are 0 in all kernels."""
    arrived, hardware = evidence.arrived, evidence.hardware
    asked = [name for name in evidence.of_pass.counters if arrived.has(name)]
    live = [name for name in asked if _live(arrived, name)]
    proof = [name for name in asked if name in {"GRBM_GUI_ACTIVE", "GRBM_COUNT", "SQ_INSTS_VALU", "SQ_BUSY_CYCLES"}]
    if asked and ((proof and not set(proof) & set(live)) or not live):
        level = hardware.gated(evidence.arch)
        counted = f"all counters but {', '.join(live)} are 0" if live else "all counters are 0"
        if level:
            remedy = (
                "sudo amd-smi set -g 0 -l stable_std (or echo profile_standard into power_dpm_force_performance_level)"
            )
            what = f"{counted}, because the GPU's performance level is {level}"
        elif evidence.arch.startswith("gfx1"):
            what = f"{counted}: Radeon GPUs count only at a fixed performance level, and this one's is not shown"
            remedy = "sudo amd-smi set -g 0 -l stable_std"
        else:
            what, remedy = (
                f"{counted}, so none of them means anything",
                "see the log of the pass; is another profiler active?",
            )
        yield PassFinding(ALL_ZERO, what, remedy, stops=bool(level))
    elif evidence.arch.startswith("gfx12") and "FETCH_SIZE" in asked and "FETCH_SIZE" not in live:
        yield PassFinding(
            "fetch_size_gfx12", "FETCH_SIZE is 0: before July 2026 it does not count gfx12's 256-byte requests",
            "measure GL2C_EA_RDREQ_sum, and take 256 bytes each", "warning",
        )  # fmt: skip


def _live(arrived: PassOutput, name: str) -> bool:
    plain = name.removesuffix("_sum")
    return any(arrived.counters.get(each, 0) for each in (name, plain, f"{plain}_sum"))


def _release_clash(evidence: Evidence) -> str:
    """Return the remedy if the profiler and the application's torch have different ROCm releases, else ""."""
    ours = ".".join(evidence.tool.rocm.split(".")[:2])
    if not evidence.torch_rocm or not ours or ours == evidence.torch_rocm:
        return ""
    return (
        f"{evidence.tool.name} is from ROCm {ours} but the application's torch brings ROCm {evidence.torch_rocm}: "
        f"use a profiler of ROCm {evidence.torch_rocm}"
    )
