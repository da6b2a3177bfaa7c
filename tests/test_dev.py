"""dev.py, the two commands' engine: it needs nothing but the standard library and says what is wrong in one line."""

import ast
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def checkout(tmp_path):
    """A folder with dev.py, the project file and the lock, and a stand-in uv that records how it is called."""
    for name in ("dev.py", "pyproject.toml", "requirements.lock", "Makefile"):
        shutil.copy(ROOT / name, tmp_path)
    version = next(
        node.value.value
        for node in ast.parse((ROOT / "dev.py").read_text()).body
        if isinstance(node, ast.Assign) and node.targets[0].id == "UV_VERSION"
    )
    uv = tmp_path / ".tools" / f"uv-{version}" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(
        f"#!/bin/sh\necho \"$@\" >> '{tmp_path}/calls'\n"
        f"[ \"$1\" = venv ] && mkdir -p '{tmp_path}/.venv/bin' && "
        f"printf '#!/bin/sh\\necho ran \"$@\"; exit 7\\n' > '{tmp_path}/.venv/bin/pytest' && "
        f"chmod +x '{tmp_path}/.venv/bin/pytest'\nexit 0\n"
    )
    uv.chmod(0o755)
    return tmp_path


def dev(folder, *arguments):
    """Run dev.py in a folder."""
    command = [sys.executable, "-I", folder / "dev.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_only_the_standard_library_is_imported():
    """dev.py runs on a machine where nothing is installed."""
    names = set()
    for node in ast.walk(ast.parse((ROOT / "dev.py").read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.split(".")[0])
    assert names <= set(sys.stdlib_module_names)


def test_an_older_python_is_told_so_instead_of_a_syntax_error():
    """Python 3.6, the python3 of some systems that ROCm runs on, parses dev.py and comes to its first check."""
    tree = ast.parse((ROOT / "dev.py").read_text(), feature_version=(3, 6))
    before = [node for node in tree.body[:3] if not isinstance(node, ast.Expr)]
    assert [type(node) for node in before] == [ast.Import, ast.If]
    assert ast.unparse(before[1]).startswith("if sys.version_info < (3, 11):\n    sys.exit(")


def test_environment_is_made_once(checkout):
    """The first call makes .venv from the lock, the second starts at once; arguments and status go through."""
    first = dev(checkout, "test", "-k", "softmax")
    assert (first.returncode, first.stdout) == (7, "ran -k softmax\n")
    calls = (checkout / "calls").read_text().splitlines()
    assert [call.split()[0] for call in calls] == ["venv", "pip", "pip"]
    assert "requirements.lock" in calls[1]
    assert dev(checkout, "test").returncode == 7
    assert (checkout / "calls").read_text().splitlines() == calls


@pytest.mark.parametrize("name", ["plain", "a cl\u00f6ne"])
def test_checkout_path_is_ascii_for_every_locale(checkout, name):
    """LC_ALL=C and a checkout in a folder with a letter outside of ASCII: site.py would end with a traceback."""
    home = checkout.rename(checkout.parent / name)
    pth = home / ".venv/lib/python3.11/site-packages/_rocattn.pth"
    pth.parent.mkdir(parents=True)
    pth.write_text(f"{home}\n{home}/profiling", "utf-8")
    uv = next(home.glob(".tools/*/bin/uv"))
    uv.write_text("#!/bin/sh\n")
    dev(home, "lint")
    lines = pth.read_text("ascii").splitlines()
    assert [(pth.parent / line).resolve() for line in lines] == [home, home / "profiling"]
    assert not any(Path(line).is_absolute() for line in lines)


@pytest.mark.parametrize(("cpus", "processes"), [(1, 2), (2, 3), (64, 4)])
def test_all_tests_are_shared_out_and_a_part_is_not(checkout, cpus, processes):
    """Without arguments one process more than CPUs, four at most, each with whole files; sweeps only in test-all."""
    code = f"import os, runpy; os.sched_getaffinity = lambda _: set(range({cpus})); "
    command = [sys.executable, "-c", f"{code}runpy.run_path('dev.py', run_name='__main__')"]
    ran = [
        subprocess.run([*command, *task], cwd=checkout, capture_output=True, text=True, check=False).stdout.strip()
        for task in (["test"], ["test-all"], ["test", "tests/attention"])
    ]
    shared = f"ran -n {processes} --dist loadfile --no-loadscope-reorder"
    assert ran == [f"{shared} -m not exhaustive", shared, "ran tests/attention"]


ENDING = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"kept after {sys.stdin.readline().strip()}"))
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)  # as long as benchmarks take to end
    sys.exit(f"kept after {sys.stdin.readline().strip()}")
"""


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT"])
def test_signals_go_to_the_command(checkout, how):
    """A runner's or a supervisor's SIGTERM comes to dev.py alone; what is being measured ends and is kept."""
    dev(checkout, "test")
    (checkout / "ending.py").write_text(ENDING)
    (checkout / ".venv/bin/pytest").write_text(f"#!/bin/sh\nexec '{sys.executable}' '{checkout}/ending.py'\n")
    command, pipe = [sys.executable, "-I", checkout / "dev.py", "test", "x"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, how))
        assert process.communicate("it", timeout=300)[1] == "kept after it\n"
    assert process.returncode == 1


def test_a_changed_lock_makes_the_environment_again(checkout):
    """A pull that brings a new lock is followed without being asked."""
    dev(checkout, "test")
    with (checkout / "requirements.lock").open("a") as lock:
        lock.write("# renewed\n")
    dev(checkout, "test")
    assert len((checkout / "calls").read_text().splitlines()) == 6


def test_stale_lock_stops_with_the_remedy(checkout):
    """Dependencies edited without renewing the lock: one line and no run of old versions."""
    project = checkout / "pyproject.toml"
    project.write_text(project.read_text().replace('"numpy>=', '"numpy>=1.27,>='))
    done = dev(checkout, "test")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "dev.py: requirements.lock is older than pyproject.toml's dependencies: run `python3 dev.py lock`"
    ]
    assert not (checkout / "calls").exists()


def test_committed_lock_is_current():
    """The first line of requirements.lock is the hash of pyproject.toml's dependency tables."""
    sys.path.insert(0, str(ROOT))
    try:
        import dev as module
    finally:
        sys.path.remove(str(ROOT))
    assert (ROOT / "requirements.lock").read_text().startswith(module.HASH_LINE + module.dependency_hash())


def test_torch_is_fetched_once_and_whole(checkout):
    """By the pip of this Python, bound to the lock's versions; what an interrupted fetch left is begun anew."""
    (checkout / "pip").mkdir()
    (checkout / "pip/__init__.py").touch()
    (checkout / "pip/__main__.py").write_text(
        "import pathlib, sys\n"
        "target, bounds = (sys.argv[sys.argv.index(name) + 1] for name in ('--target', '--constraint'))\n"
        "assert not pathlib.Path(target).exists()\n"
        "pathlib.Path(target).mkdir()\n"
        "assert '--hash' not in pathlib.Path(bounds).read_text()\n"
        f"open({str(checkout / 'fetched')!r}, 'a').write(' '.join(sys.argv[-2:]) + '\\n')\n"
        "sys.exit(pathlib.Path('no-index').exists())\n"
    )
    command = [sys.executable, "dev.py", "test-torch", "-x"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}

    def fetch():
        return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)

    (checkout / "no-index").touch()
    failed = fetch()
    assert failed.returncode == 1
    assert failed.stderr.splitlines()[-1].startswith("dev.py: cannot fetch PyTorch (needs pip and a package index")
    (checkout / "no-index").unlink()
    assert [fetch().stdout for _ in range(2)] == ["ran tests/pytorch tests/gpu/test_torch.py -x\n"] * 2
    assert (checkout / "fetched").read_text() == "torch==2.13.0 transformers==5.24.0\n" * 2


def test_an_unknown_task_names_the_known_ones(checkout):
    """A typo is one line."""
    done = dev(checkout, "tset")
    assert done.returncode == 1
    known = "run, test, test-all, test-torch, rocattn, wheel, docs, lint, lock"
    assert done.stderr == f"dev.py: unknown task 'tset': choose from {known}\n"


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_passes_the_task_and_its_arguments(checkout):
    """``make test ARGS=…`` is dev.py with the same arguments."""
    done = subprocess.run(
        ["make", "test", f"PYTHON={shlex.quote(sys.executable)}", "ARGS=-k softmax"],
        cwd=checkout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "ran -k softmax" in done.stdout
    assert done.returncode == 2
