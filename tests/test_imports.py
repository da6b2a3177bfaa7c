"""Who may import whom: the kit and the verbs, the one home of each foreign library, and fast help."""

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rocattn_profiling.cli import VERBS

from .sources import nodes

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "rocattn"
TOOLKIT = ROOT / "profiling" / "rocattn_profiling"
STRUCTURE = tomllib.loads((ROOT / "tests/structure.toml").read_text())
KIT = list(STRUCTURE["kit"])

# Foreign library -> the only files that may import it.
HOMES = {
    "hip": {"rocattn/gpu/driver.py"},
    "rocm": {"rocattn/gpu/driver.py"},
    "torch": {  # the hooks run in a program's Python, not in rocattn's
        "rocattn/torch/__init__.py",
        "rocattn/torch/function.py",
        "rocattn/torch/models.py",
        "rocattn/torch/operators.py",
        "rocattn/torch/packed.py",
        "profiling/rocattn_profiling/kernels/capture/gpu_hook.py",
        "profiling/rocattn_profiling/kernels/capture/torch_hook.py",
    },
    "submitit": {"profiling/rocattn_profiling/bench/fleet/cluster.py"},
    "asv": {
        "profiling/rocattn_profiling/asv/series.py",
        "profiling/rocattn_profiling/asv/store.py",
        "profiling/rocattn_profiling/revisions/asv_config.py",
        "profiling/rocattn_profiling/revisions/build.py",
    },
    "asv_runner": {f"profiling/rocattn_profiling/asv/{name}.py" for name in ("worker", "series")},
}


def modules(folder):
    """Return every module below a folder, with its path relative to the repository."""
    return {path.relative_to(ROOT).as_posix(): path for path in sorted(folder.rglob("*.py"))}


def imported(path):
    """Return the dotted names that a module imports, anywhere in it, type-checking blocks included."""
    names = set()
    for node in nodes(path):
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


def allowed(folder):
    """Return what the modules of a folder of the toolkit may import: the kit below it, and verbs by the table."""
    if folder in KIT:
        return KIT[: KIT.index(folder) + 1]
    return [*KIT, folder, *STRUCTURE["verbs"][folder]]


@pytest.mark.parametrize("name", modules(TOOLKIT))
def test_no_folder_imports_what_it_may_not(name):
    """The kit knows no verb, and a verb imports only those that `structure.toml` names."""
    folder, *inside = (ROOT / name).relative_to(TOOLKIT).parts
    for module in imported(ROOT / name) if inside else ():
        parts = module.split(".")
        if parts[0] == "rocattn_profiling" and len(parts) > 1:
            assert parts[1] in allowed(folder), f"{name} imports {module}"


def test_verbs_import_each_other_in_no_circle():
    """The table of verbs is in order: each names only verbs above it."""
    verbs = list(STRUCTURE["verbs"])
    assert set(verbs) == set(VERBS) == {path.parent.name for path in TOOLKIT.glob("*/command.py")}
    for verb, others in STRUCTURE["verbs"].items():
        assert all(verbs.index(other) < verbs.index(verb) for other in others), verb


def test_contributing_shows_the_same_tables():
    """CONTRIBUTING.md has the tables of `structure.toml`, line by line."""
    page = (ROOT / "CONTRIBUTING.md").read_text()
    kit = [f"| `{name}/` | {text} |" for name, text in STRUCTURE["kit"].items()]
    verbs = [
        f"| `{verb}` | {', '.join(f'`{one}`' for one in others)} |"
        for verb, others in STRUCTURE["verbs"].items() if others
    ]  # fmt: skip
    for table in (kit, verbs):
        assert "|---|---|\n" + "\n".join(table) + "\n\n" in page


@pytest.mark.parametrize("name", {**modules(LIBRARY), **modules(TOOLKIT)})
def test_each_foreign_library_has_one_home(name):
    """hip-python is imported by the driver alone, PyTorch by its operators, asv by what reads its store."""
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


def test_without_pytorch_its_module_says_so():
    """``import rocattn.torch`` ends with one line that names what is missing."""
    code = "import sys; sys.modules['torch'] = None; import rocattn.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: rocattn.torch needs PyTorch, which is not installed"
