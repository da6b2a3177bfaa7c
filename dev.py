"""Run a project task with nothing but Python 3.11+: ``python3 dev.py run`` or ``python3 dev.py test``.

Others: ``test-all``, ``test-torch`` (the tests that need PyTorch, with one that pip finds), ``lint``, ``docs``,
``wheel``, ``lock``, and ``rocattn …`` for any of its commands in the locked environment.

The first call fetches the pinned uv into ``.tools`` and lets it make ``.venv`` from ``requirements.lock``; later
calls find both there and start at once, without a network.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - first, and in words that Python 3.6 can parse: below are newer ones
    sys.exit("dev.py: Python 3.11 or newer is needed; this is " + sys.version.split()[0])

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

UV_VERSION = "0.13.8"
ROOT = Path(__file__).resolve().parent
LOCK = ROOT / "requirements.lock"
BIN = ROOT / ".venv" / "bin"
# Not of the lock, as the build differs: pip takes the one for CPUs where an index, or a folder it is told of, has that.
BESIDE = {"torch": "2.13.0", "transformers": "5.24.0"}
HASH_LINE = "# dependency tables: "
MYPY = ["mypy", "--strict", "rocattn", "profiling/rocattn_profiling", ".rocattn/gate"]
SPHINX = ["--fail-on-warning", "--keep-going", "--quiet"]  # a link that leads nowhere is a warning
TASKS: dict[str, list[list[str]]] = {
    "run": [["rocattn", "ci", "--quick"]],
    "test": [["pytest"]],
    "test-all": [["pytest"]],
    "test-torch": [["pytest", "tests/pytorch", "tests/gpu/test_torch.py"]],
    "rocattn": [["rocattn"]],
    "wheel": [["python", "-m", "build", "--no-isolation", "--outdir", "dist"]],
    "docs": [["python", "-m", "sphinx", *SPHINX, "-c", "docs", "-d", "out/doctrees", "."]],
    "lint": [["ruff", "check", "."], ["ruff", "format", "--check", "."], MYPY],
}


def find_uv() -> Path:
    """Return the path of the pinned uv, fetching it on first use with pip or, failing that, venv."""
    home = ROOT / ".tools" / f"uv-{UV_VERSION}"
    uv = home / "bin" / "uv"
    if uv.exists():
        return uv
    print(f"dev.py: fetching uv {UV_VERSION} into .tools", file=sys.stderr)
    # A half-made folder must go first: pip --target skips an existing bin/ and still exits 0.
    shutil.rmtree(home, ignore_errors=True)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"uv=={UV_VERSION}"]
    pip = subprocess.run([sys.executable, *install, "--target", home], capture_output=True, text=True, check=False)
    if pip.returncode:
        shutil.rmtree(home, ignore_errors=True)
        made = subprocess.run([sys.executable, "-m", "venv", home], capture_output=True, check=False)
        if made.returncode or subprocess.run([home / "bin" / "python", *install], check=False).returncode:
            shutil.rmtree(home, ignore_errors=True)
            lines = pip.stderr.strip().splitlines() or ["pip is missing"]
            why = next((line for line in lines if line.startswith("ERROR: ")), lines[-1])  # a notice may follow it
            sys.exit(f"dev.py: cannot fetch uv (needs pip or venv, and a package index, once): {why}")
    return uv


def find_torch() -> Path:
    """Return the folder of PyTorch and what is tested with it, fetching them on first use with pip."""
    versions = [f"{name}=={version}" for name, version in BESIDE.items()]
    home = ROOT / ".tools" / "-".join(["py{}.{}".format(*sys.version_info), *versions]).replace("==", "-")
    if home.exists():
        return home
    print(f"dev.py: fetching {' and '.join(versions)} into .tools", file=sys.stderr)
    part, bounds = home.with_name(home.name + ".part"), home.with_name("constraints.txt")
    shutil.rmtree(part, ignore_errors=True)
    home.parent.mkdir(exist_ok=True)
    # What the lock has, too, in its versions; pip would ask hashes of everything if it saw any.
    bounds.write_text("".join(line.rstrip("\\ \n") + "\n" for line in LOCK.read_text().splitlines() if "==" in line))
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile", "--target", part]
    if subprocess.run([sys.executable, *install, "--constraint", bounds, *versions], check=False).returncode:
        sys.exit("dev.py: cannot fetch PyTorch (needs pip and a package index, once): the lines above say why")
    return part.rename(home)


def dependency_hash() -> str:
    """Return the hash of what the lock depends on: the dependency tables of pyproject.toml."""
    import tomllib

    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = tables["project"]
    wanted = [project["dependencies"], project["optional-dependencies"], tables["dependency-groups"]]
    return hashlib.sha256(repr([project["requires-python"], *wanted]).encode()).hexdigest()[:16]


def lock(uv: Path, extra: list[str]) -> None:
    """Renew requirements.lock: names, versions and hashes for every supported Python, no addresses."""
    compile_ = [uv, "pip", "compile", "pyproject.toml", "--all-extras", "--group", "dev", "--universal"]
    quiet = ["--generate-hashes", "--no-annotate", "--no-header", "--quiet", "--output-file", LOCK]
    done = subprocess.run([*compile_, *quiet, *extra], cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    LOCK.write_text(f"{HASH_LINE}{dependency_hash()} (renew with: python3 dev.py lock)\n{LOCK.read_text()}")


def prepare(uv: Path) -> None:
    """Create or update ``.venv`` when pyproject.toml or the lock changed since it was made."""
    if not LOCK.read_text().startswith(HASH_LINE + dependency_hash()):
        sys.exit("dev.py: requirements.lock is older than pyproject.toml's dependencies: run `python3 dev.py lock`")
    parts = [(ROOT / "pyproject.toml").read_bytes(), LOCK.read_bytes(), sys.version.encode(), str(ROOT).encode()]
    stamp, want = ROOT / ".venv" / "stamp", hashlib.sha256(b"\0".join(parts)).hexdigest()
    if stamp.exists() and stamp.read_text() == want:
        return
    print("dev.py: making .venv from requirements.lock", file=sys.stderr)
    env = os.environ | {"VIRTUAL_ENV": str(ROOT / ".venv"), "UV_PYTHON_DOWNLOADS": "never"}
    python = ["--python", sys.executable]
    for step in (
        ["venv", "--quiet", "--clear", *python, ".venv"],
        # Compiled once, by all CPUs, not by the first of each program that imports a module.
        ["pip", "sync", "--quiet", "--compile-bytecode", "requirements.lock"],
        # hatchling is in the lock, so the editable build needs no environment of its own.
        ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--editable", "."],
    ):
        done = subprocess.run([uv, *step], cwd=ROOT, env=env, check=False)
        if done.returncode:
            sys.exit(f"dev.py: `uv {' '.join(step[:2])}` failed with status {done.returncode}; the lines above say why")
    # As relative paths, so in ASCII: up to Python 3.12 the file is read in the locale's encoding, and with LC_ALL=C
    # a letter like é in the checkout's path would keep every command of .venv from starting.
    for listed in (ROOT / ".venv" / "lib").glob("python*/site-packages/_rocattn.pth"):
        places = [os.path.relpath(line, listed.parent) for line in listed.read_text("utf-8").splitlines()]
        listed.write_text("\n".join([*places, ""]))
    stamp.write_text(want)


def sharing() -> list[str]:
    """Return pytest's options for all tests: files shared out among processes, one more than CPUs but at most four.

    The one more works while others wait for a program or a timer; yet more would only wait for memory. A part of the
    tests, so whatever has arguments of its own, runs in one process: there a debugger and ``--benchmark-only`` work.
    """
    workers = min(4, len(os.sched_getaffinity(0)) + 1)
    return ["-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder"]


def main() -> None:
    """Prepare the environment, then become the task in it; arguments after the task go to its first command."""
    task, *rest = sys.argv[1:] or ["run"]
    if task not in {*TASKS, "lock"}:
        sys.exit(f"dev.py: unknown task {task!r}: choose from {', '.join([*TASKS, 'lock'])}")
    os.chdir(ROOT)
    uv = find_uv()
    if task == "lock":
        lock(uv, rest)
        return
    prepare(uv)
    os.environ["VIRTUAL_ENV"] = str(ROOT / ".venv")
    os.environ["PATH"] = os.pathsep.join([str(BIN), str(uv.parent), os.environ.get("PATH", os.defpath)])
    if task == "test-torch":
        os.environ["PYTHONPATH"] = str(find_torch())
    if task.startswith("test") and not rest:
        rest = sharing() + (["-m", "not exhaustive"] if task == "test" else [])
    if task == "wheel":
        os.environ.setdefault("ROCATTN_WHEEL_KERNELS", "all")
    if task == "docs" and not rest:
        rest = ["out/docs"]
    *before, last = [*TASKS[task][0], *rest], *TASKS[task][1:]
    for command in before:
        done = subprocess.run([BIN / command[0], *command[1:]], check=False)
        if done.returncode:
            sys.exit(done.returncode)
    # In the place of this process: a signal that only this one gets is the command's, and nothing hurries its end.
    os.execv(BIN / last[0], last)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
