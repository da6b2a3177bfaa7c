"""Who may import whom: floors, the one home of each foreign library, and fast help."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rocattn_profiling.cli import VERBS

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "rocattn"
TOOLKIT = ROOT / "profiling" / "rocattn_profiling"

# Floors of the toolkit from top to bottom; a module may import its own floor and those below.
FLOORS = [
    {"cli"},
    {"gate", "report"},
    {"measure", "collect", "ingest", "audit", "metrics"},
    {"files", "markup", "reasons"},
]
RANK = {name: rank for rank, names in enumerate(FLOORS) for name in names}

# Foreign library -> the only files that may import it.
HOMES = {
    "hip": {"rocattn/gpu/driver.py"},
    "submitit": {"profiling/rocattn_profiling/measure/cluster.py"},
    "gguf": {"profiling/rocattn_profiling/measure/gguf_models.py"},
    "rocm": {"rocattn/gpu/driver.py"},
    "asv": {
        f"profiling/rocattn_profiling/measure/{name}.py"
        for name in ("asv_config", "asv_store", "asv_entry", "asv_series", "asv_publish", "building")
    },
    "asv_runner": {f"profiling/rocattn_profiling/measure/{name}.py" for name in ("asv_worker", "asv_series")},
}

# Verdicts and change points are records of the gate's: reports read its structs, and nothing else of their neighbour.
VERDICT = {f"rocattn_profiling.gate.{name}" for name in ("verdict", "pairs", "changepoints")}


def modules(folder):
    """Return every module below a folder, with its path relative to the repository."""
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(folder.rglob("*.py"))}


def imported(path):
    """Return the dotted names that a module imports, anywhere in it, type-checking blocks included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide which floor is meant"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("name", modules(LIBRARY))
def test_the_library_knows_nothing_of_the_toolkit(name):
    """rocattn imports neither rocattn_profiling nor the measuring libraries."""
    tops = {module.split(".")[0] for module in imported(ROOT / name)}
    assert not tops & {"rocattn_profiling", "asv", "asv_runner", "pandas", "rich", "jinja2", "psutil"}


@pytest.mark.parametrize("name", modules(TOOLKIT))
def test_no_floor_imports_a_higher_one(name):
    """cli -> gate, report -> measure, … -> rocattn, and gate and report do not know each other."""
    inside = (ROOT / name).relative_to(TOOLKIT).with_suffix("").parts[0]
    if inside == "__init__":
        return
    for module in imported(ROOT / name):
        parts = module.split(".")
        if parts[0] != "rocattn_profiling" or len(parts) < 2:
            continue
        target = parts[1]
        assert RANK[target] >= RANK[inside], f"{name} imports {module}, from a higher floor"
        if RANK[inside] == RANK["gate"]:
            verdict = inside == "report" and ".".join(parts[:3]) in VERDICT
            assert target == inside or RANK[target] > RANK[inside] or verdict, f"{name} imports {module}, its neighbour"


@pytest.mark.parametrize("name", {**modules(LIBRARY), **modules(TOOLKIT)})
def test_each_foreign_library_has_one_home(name):
    """hip-python is imported by the driver alone, asv's classes by the store and what reads it."""
    tops = {module.split(".")[0] for module in imported(ROOT / name)}
    for library, homes in HOMES.items():
        assert library not in tops or name in homes, f"{name} imports {library}: that is the business of {homes}"


def loaded_by(*argv):
    """Run a command in a fresh interpreter and return its output and the modules it loaded."""
    code = (
        "import json, sys\n"
        "from rocattn_profiling.cli import main\n"
        "try:\n    main(sys.argv[1:])\n"
        "except SystemExit as stop:\n    assert stop.code in (0, None), stop.code\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("argv", [["--help"], *([verb, "--help"] for verb in VERBS)], ids=" ".join)
def test_help_loads_nothing_heavy(argv):
    """Every --help stays light: no numpy, pandas, rich, asv, jinja2, psutil or hip-python is loaded for it."""
    text, names = loaded_by(*argv)
    assert "usage: rocattn" in text
    assert not names & {"numpy", "pandas", "rich", "asv", "asv_runner", "jinja2", "psutil", "rocm", "hip", "submitit"}


def test_importing_rocattn_loads_no_numpy():
    """``import rocattn`` is cheap; its names load their modules when first used."""
    code = "import rocattn, sys; assert 'numpy' not in sys.modules; rocattn.attention; assert 'numpy' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
