"""Find AMD's installed profilers with their versions, and choose one."""

from __future__ import annotations

import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import msgspec

from rocattn.errors import RocattnError, complaint
from rocattn_profiling.base.process import Answer, ask

# Name -> its programs, in search order.
PROGRAMS = {
    "rocprofv3": ("rocprofv3",),
    "rocprofv2": ("rocprofv2",),
    "rocprof": ("rocprof",),
    "rocprof-compute": ("rocprof-compute", "omniperf"),
}
# Version of rocprofiler-sdk -> its ROCm release (from its CHANGELOG.md); ROCm 7.2 also has 1.1.0.
_SDK_RELEASES = {"0.4": "6.2", "0.5": "6.3", "0.6": "6.4", "1.0": "7.0", "1.1": "7.1", "1.3": "7.13"}
# PC-sampling methods by GPU, the better one first, with the first ROCm release that supports them
# (source/docs/how-to/using-pc-sampling.rst and CHANGELOG.md of rocprofiler-sdk). None is documented for Radeon GPUs.
_BOTH = {"stochastic": (7, 0), "host_trap": (6, 4)}
METHODS = {"gfx90a": {"host_trap": (6, 4)}, "gfx942": _BOTH, "gfx950": _BOTH}
_CDNA = re.compile(r"gfx(?:90[08a]|94\d|95\d)")
_COMPUTE_RDNA = re.compile(
    r"gfx115[0-3]"
)  # the only RDNA GPUs that released versions of rocprof-compute support (3.6 and later)
# Printed by rocprof-compute before 3.6 and Omniperf for any command (verify_deps in src/rocprof-compute); some versions
# exit with status 0.
_LACKING = re.compile(r"\[ERROR\] [Tt]he '([^']+)' (?:package was not found|distribution does not meet)")


class NoProfilerError(RocattnError, RuntimeError):
    """Raised when no usable profiler is installed."""


class Tool(msgspec.Struct, frozen=True):
    """An installed profiler.

    Attributes:
        name: rocprofv3, rocprofv2, rocprof or rocprof-compute (omniperf included).
        path: The program.
        version: The tool's own version, or "" if unknown.
        rocm: The ROCm release it belongs to ("7.0.0"), or "".
        told_by: The source of the version.
        problem: Why it cannot be used, or "".
        assumed: Whether it is not installed, so that only its command lines can be shown.
    """

    name: str
    path: str
    version: str = ""
    rocm: str = ""
    told_by: str = ""
    problem: str = ""
    assumed: bool = False

    @property
    def release(self) -> tuple[int, int]:
        """The ROCm release as numbers; (0, 0) if unknown."""
        match = re.match(r"(\d+)\.(\d+)", self.rocm)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    @property
    def label(self) -> str:
        """The name with the known versions."""
        parts = [self.version and f"{self.version}", self.rocm and f"ROCm {self.rocm}"]
        known = ", ".join(part for part in parts if part) or "version unknown"
        return f"{self.name} ({known})"


def find_profilers(timeout_s: float = 20.0) -> list[Tool]:
    """Return all installed profilers with their versions, the newest kind first.

    Searches PATH, ROCM_PATH, this Python's ROCm packages and /opt/rocm*.
    """
    places = os.pathsep.join(_places())
    programs_here = [
        (name, path)
        for name, programs in PROGRAMS.items()
        if (path := next((path for program in programs if (path := shutil.which(program, path=places))), None))
    ]
    if not programs_here:
        return []
    with ThreadPoolExecutor(max_workers=len(programs_here)) as pool:
        return list(pool.map(lambda item: identify(item[0], item[1], timeout_s), programs_here))


def choose(tools: list[Tool], arch: str, wanted: str = "") -> tuple[Tool, str]:
    """Return the profiler to use and the reason.

    Args:
        tools: The installed profilers (`find_profilers`).
        arch: The GPU's architecture.
        wanted: The name of the profiler to use, or "" for the best.

    Raises:
        NoProfilerError: When none is usable; the message gives the reason for each.
    """
    by_name = {tool.name: tool for tool in tools}
    refused = {tool.name: why for tool in tools if (why := tool.problem or _unfit(tool, arch))}
    if wanted:
        name = "rocprof-compute" if wanted == "omniperf" else wanted
        if name not in by_name:
            have = f"there is {', '.join(by_name)}" if tools else "nor is any other profiler"
            raise NoProfilerError(f"{wanted} is not installed; {have} ({_how_to_get(name)})")
        if by_name[name].problem:
            raise NoProfilerError(f"{by_name[name].path} cannot be used: {by_name[name].problem}")
        return by_name[name], refused.get(name, "named on the command line")
    order = [
        ("rocprofv3", "AMD's current profiler, for Instinct and Radeon"),
        *([("rocprof", "rocprofv3 is not usable here; version 1 supports gfx9")] if _CDNA.match(arch) else []),
        ("rocprofv2", "rocprofv3 is not usable here"),
        ("rocprof", "no newer profiler is usable here"),
        ("rocprof-compute", "the only profiler here; it plans its own passes"),
    ]
    for name, why in order:
        if name in by_name and name not in refused:
            return by_name[name], why
    if refused:
        reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
        raise NoProfilerError(f"no installed profiler can be used on {arch or 'this GPU'}: {reasons}")
    raise NoProfilerError(f"no profiler is installed: {_how_to_get('rocprofv3')}")


def assume(text: str) -> Tool:
    """Return an assumed tool from NAME or NAME@ROCM, to show its command lines.

    Raises:
        NoProfilerError: When the profiler does not exist.
    """
    name, _, rocm = text.partition("@")
    if name == "omniperf":
        name = "rocprof-compute"
    if name not in PROGRAMS:
        raise NoProfilerError(f"there is no profiler {name!r}: there are {', '.join(PROGRAMS)}")
    if rocm and re.fullmatch(r"\d+\.\d+(?:\.\d+)*", rocm) is None:
        raise NoProfilerError(f"{rocm!r} is not a ROCm release: write it like 6.2 or 7.0")
    release = rocm or {"rocprofv3": "7.0", "rocprof-compute": "7.0"}.get(name, "6.2")
    return Tool(name, PROGRAMS[name][0], rocm=release, told_by="assumed", assumed=True)


def identify(name: str, path: str, timeout_s: float = 20.0) -> Tool:
    """Return a profiler with its version from ``--version``, ROCm's version file or ``--help``, in this order."""
    answer = ask([path, "--version"], timeout_s=timeout_s)
    if answer is None:
        return Tool(name, path, problem="it does not start (is it for this processor, and executable?)")
    if answer.ended.status is None:
        return Tool(name, path, problem=f"it gives no version in {timeout_s:.0f} s")
    release = _release_file(path)
    if name == "rocprofv3":
        return _identify_v3(path, answer, release, timeout_s)
    version = _after(r"(?:[Vv]ersion:?|ROCProfiler version:)\s*v?", answer.text)
    rocm = _after(r"ROCm version:\s*", answer.text) or release
    if name in {"rocprof", "rocprofv2"}:
        version = _after(r"ROCProfiler version:\s*", answer.text)
    if lacking := [] if version else _LACKING.findall(answer.text):
        listed = re.search(r"See: (\S+)", answer.text)
        how = f"pip install -r {listed[1]} into the Python that runs it" if listed else "install them"
        named = ", ".join(lacking[:3]) + (f" and {len(lacking) - 3} more" if len(lacking) > 3 else "")
        return Tool(name, path, rocm=rocm, problem=f"it lacks Python packages ({named}): {how}")
    if answer.ended.status != 0 and not version and not rocm:
        return Tool(name, path, problem=f"--version fails: {complaint(answer.text, answer.ended.how)}")
    return Tool(name, path, version, rocm, "--version" if version else ".info/version")


def bundled_rocm(program: str, timeout_s: float = 20.0) -> str:
    """Return the ROCm release bundled with a Python's torch ("6.4"), or "".

    A profiler of another release loads its own libraries into that process next to torch's, which causes an abort,
    a hang or empty files.
    """
    path = shutil.which(program)
    if path is None or re.match(r"python[\d.]*$", Path(program).name) is None:
        return ""
    answer = ask([path, "-c", "from importlib.metadata import version; print(version('torch'))"], timeout_s=timeout_s)
    release = re.search(r"\+rocm(\d+\.\d+)", answer.text) if answer is not None and answer.ended.status == 0 else None
    return release[1] if release else ""


def _identify_v3(path: str, answer: Answer, release: str, timeout_s: float) -> Tool:
    version = _after(r"\bversion:\s*", answer.text)
    if answer.ended.status == 0 and version:  # ROCm 7.0 and later
        rocm = _after(r"rocm_version:\s*", answer.text) or release
        return Tool("rocprofv3", path, version, rocm or _SDK_RELEASES.get(version[:3], ""), "--version")
    if release:
        return Tool("rocprofv3", path, "", release, ".info/version")
    asked = ask([path, "--help"], timeout_s=timeout_s)
    text = asked.text if asked is not None and asked.ended.status == 0 else ""
    if "--kernel-trace" not in text:
        return Tool("rocprofv3", path, problem=f"--version and --help fail: {complaint(answer.text)}")
    if "--memory-allocation-trace" in text:
        return Tool("rocprofv3", path, "", "6.4", "--help has --memory-allocation-trace")
    if "--pmc" in text:
        return Tool("rocprofv3", path, "", "6.3", "--help has --pmc")
    return Tool("rocprofv3", path, "", "6.2", "--help has no --pmc")


def _places() -> list[str]:
    """Return the search path."""
    places = [os.environ.get("PATH", os.defpath)]
    if root := os.environ.get("ROCM_PATH"):
        places.append(str(Path(root) / "bin"))
    spec = find_spec("_rocm_sdk_core")  # ROCm as Python packages
    places += [str(Path(folder) / "bin") for folder in (spec.submodule_search_locations or [] if spec else [])]
    places.append("/opt/rocm/bin")
    opt = Path("/opt")
    installed = sorted(opt.glob("rocm-*"), key=lambda path: _numbers(path.name), reverse=True) if opt.is_dir() else []
    return [*places, *(str(path / "bin") for path in installed)]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]


def _unfit(tool: Tool, arch: str) -> str:
    """Return why a profiler does not support an architecture, or ""."""
    if tool.name == "rocprof-compute" and arch and not _CDNA.match(arch) and not _COMPUTE_RDNA.match(arch):
        return f"rocprof-compute does not support {arch}"
    if tool.name == "rocprof" and arch and not _CDNA.match(arch):
        return f"rocprof version 1 does not support {arch}"
    return ""


def _how_to_get(name: str) -> str:
    if name == "rocprof-compute":
        return "install rocprofiler-compute"
    return (
        "install rocprofiler-sdk of ROCm 6.2 or later, which has rocprofv3" if name == "rocprofv3" else "part of ROCm 6"
    )


def _release_file(path: str) -> str:
    """Return the version from the version file of a program's ROCm: "6.2.4" for "6.2.4-139"."""
    for root in dict.fromkeys((Path(path).resolve().parent.parent, Path(path).parent.parent)):
        try:
            release = re.match(r"\d+\.\d+(?:\.\d+)?", (root / ".info" / "version").read_text())
        except OSError:
            continue
        if release:
            return release[0]
    return ""


def _after(pattern: str, text: str) -> str:
    """Return the version number after a pattern, or ""."""
    match = re.search(pattern + r"(\d+(?:\.\d+)+)", text)
    return match[1] if match else ""
