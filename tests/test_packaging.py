"""The package as users get it: wheel, sdist and editable install."""

import ast
import email
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import rocattn
from rocattn.backends import BACKENDS
from rocattn.toolchain import compiler_environment, host_isa
from rocattn.toolchain.compilers import pinned_compiler
from rocattn.toolchain.host import WHEEL_TARGETS

from .docs.blocks import blocks
from .profile.ingest import generators, older_generators
from .projects import LIBRARY, PYPROJECT, SUITE
from .screens import line
from .sources import nodes

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Read from a fresh environment that holds the wheel and nothing else.
PROBE = """
import rocattn, rocattn_profiling, sys
from rocattn.sources import kernel_root
root = kernel_root()
assert "site-packages" in rocattn.__file__ and "site-packages" in rocattn_profiling.__file__, rocattn.__file__
print(root.joinpath("hip", "softmax.hip").read_text()[:20000])
"""
# Read from an environment that also has the dependencies.
ATTEND = """
import numpy, rocattn, rocattn.sources
assert "site-packages" in rocattn.__file__ and rocattn.sources.kernel_root().parent.name == "rocattn", rocattn.__file__
v = numpy.arange(24, dtype=numpy.float32).reshape(1, 6, 1, 4)
out = rocattn.attention(numpy.zeros((1, 3, 1, 4), numpy.float32), v, v, backend="cpu-flash")
assert numpy.allclose(out, v.mean(axis=1, keepdims=True)), out
"""


TAGS = {"v1.2.0": 0, "v1.2.1": 1}
KERNEL = """\
#include <rocattn/device.h>
using namespace rocattn;
LIMIT ROCATTN_KERNEL(mirror, 64, (float* x)) {
    float part[48];
#pragma unroll
    for (u32 i = 0; i < 48; i++) part[i] = load(x + i * 64 + lane_id());
#pragma unroll
    for (u32 i = 0; i < 48; i++) store(x + i * 64 + lane_id(), part[47 - i] * part[i]);
}
"""
COMPILE = """\
import pathlib, sys
from rocattn.toolchain import compile_hip
for folder, limit in (("before", ""), ("after", "__attribute__((amdgpu_num_vgpr(24)))")):
    pathlib.Path(folder).mkdir()
    code = compile_hip(str(pathlib.Path("mirror.hip").resolve()), "gfx1100", defines={"LIMIT": limit})
    pathlib.Path(folder, "mirror.hsaco").write_bytes(code.data)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the files git knows or would add, as a clean clone has them."""
    target = tmp_path_factory.mktemp("source")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


def build(tree, out, *kinds, kernels=""):
    """Build with the hatchling of this environment; return the files."""
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", out, tree]
    env = os.environ | {"ROCATTN_WHEEL_KERNELS": kernels}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(out.iterdir())


@pytest.fixture(scope="module")
def built(source, tmp_path_factory):
    """The wheel, without compiled kernels as pip makes it in a clone, and the sdist."""
    return build(source, tmp_path_factory.mktemp("dist"), "--wheel", "--sdist")


def install(wheel, env):
    """Make an environment that holds a wheel, and borrows this one's dependencies; return its folder of commands."""
    venv.create(env, with_pip=False)
    subprocess.run([*installer(), env / "bin/python", wheel], check=True)
    # A path line lends this environment's dependencies; its own .pth files, so the editable install, stay unread.
    (site,) = env.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return env / "bin"


def installer():
    """Return the command that installs a wheel into another environment: uv, which dev.py puts on PATH, or pip."""
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--no-deps", "--offline", "--python"]
    try:
        import pip  # noqa: F401 - only whether it is there
    except ImportError:
        pytest.skip("neither uv on PATH nor pip in this environment: run the tests with `python3 dev.py test`")
    return [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--no-index", "--python"]


@pytest.mark.slow
def test_wheel_has_both_packages_and_the_kernels(built, tmp_path):
    """A wheel is complete: both packages import and a kernel source reads from it, with nothing else installed."""
    wheel, _ = built
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([*installer(), python, wheel], check=True)
    done = subprocess.run([python, "-c", PROBE], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (ROOT / "kernels/hip/softmax.hip").read_text()[:20000].strip()
    shown = subprocess.run([tmp_path / "env/bin/rocattn", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"rocattn {PROJECT['version']}\n"


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder of commands of an environment that holds the wheel, and borrows this one's dependencies."""
    return install(built[0], tmp_path_factory.mktemp("installed") / "env")


@pytest.mark.slow
def test_an_installed_wheel_compiles_its_kernels(installed, tmp_path):
    """From the wheel alone, with a cache that is empty: cpu-flash computes what it should."""
    if not (able := BACKENDS.get("cpu-flash").available()):
        pytest.skip(able.reason)
    env = os.environ | {"ROCATTN_CACHE_DIR": str(tmp_path / "cache")} | compiler_environment()
    subprocess.run([installed / "python", "-c", ATTEND], cwd="/", env=env, check=True)
    assert list((tmp_path / "cache").rglob("code.so"))


@pytest.mark.slow
def test_a_wheel_for_others_needs_no_compiler(source, tmp_path, monkeypatch):
    """It carries the kernels of this CPU: with no compiler and an empty home they compute, and nothing is compiled."""
    compiler = pinned_compiler()
    if compiler.host_reason:
        pytest.skip(compiler.host_reason)
    for name in ("ROCATTN_CPU_ISA", "ROCATTN_CPU_LIBRARY"):
        monkeypatch.delenv(name, raising=False)
    host_isa.cache_clear()
    mine = platform.machine(), host_isa()
    name = next(name for name, target in WHEEL_TARGETS.items() if target[:2] == mine)
    (wheel,) = build(source, tmp_path / "dist", "--wheel", kernels=name)
    with zipfile.ZipFile(wheel) as archive:
        carried = {name for name in archive.namelist() if name.startswith("rocattn/compiled/")}
    assert carried == {"rocattn/compiled/index.json", f"rocattn/compiled/{name}.so"}
    installed, home = install(wheel, tmp_path / "env"), tmp_path / "home"
    home.mkdir()
    env = {"HOME": str(home), "PATH": os.devnull}
    code = f"{ATTEND}from rocattn_profiling.measure.machine import kernel_compiler\nprint(kernel_compiler())"
    done = subprocess.run(
        [installed / "python", "-c", code], cwd="/", env=env, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (f"{compiler.version}, {mine[1]}\n", "")
    assert not list(home.iterdir())


@pytest.fixture(scope="module")
def hooks():
    """hatch_build.py, which is in no package."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


AT = "https://example.org/someone/rocattn"


@pytest.mark.parametrize(
    ("address", "badge"),
    [
        ("", "{}"),
        (
            AT,
            f"[![{{}}]({AT}/raw/HEAD/docs/images/badge-no-amd-gpu.svg)]({AT}/blob/HEAD/docs/what-is-measured-where.md)",
        ),
    ],
)
def test_the_package_page_has_no_relative_links(hooks, address, badge):
    """Readers of a wheel's description have no clone: each place is absolute, or plain text without an address."""
    page = hooks.package_page((ROOT / "README.md").read_text(), address)
    places = re.findall(r"\]\(([^)]*)\)|(?:src|srcset|href)=\"([^\"]*)\"", page)
    assert bool(places) == bool(address)
    assert all("".join(place).startswith("https://") for place in places), places
    assert "pip install rocattn\n" in page
    assert "clone" not in page.partition("\n## ")[0]
    assert line(page, "AMD GPU yet") == badge.format("Not measured on an AMD GPU yet")
    assert page.count("```") % 2 == 0
    for place in filter(None, (place[0].removeprefix(address) for place in places)):
        path = re.fullmatch(r"/(?:blob|raw)/HEAD/([^#]*)(?:#.*)?", place)
        assert path is None or (ROOT / path[1]).is_file(), place


def test_a_readme_without_its_install_line_is_no_package_page(hooks):
    """A build fails where README.md changed and the replacement would be skipped."""
    with pytest.raises(ValueError, match=r"replaces 'pip install \.\\n' of README\.md, which is not there"):
        hooks.package_page("In a clone of this repository:\n", "")


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("repository-code: https://example.org/a/b", "https://example.org/a/b"),
        ('repository-code: "https://example.org/a/b/"', "https://example.org/a/b"),
        ("# repository-code: https://example.org/a/b", ""),
        ("repository-code: git@example.org:a/b", ""),
    ],
)
def test_the_repository_has_its_address_from_the_citation(hooks, line, address):
    """It stands once; until it is known nothing is made up."""
    assert hooks.repository_address(f"title: rocattn\n{line}\nversion: 1\n") == address


@pytest.mark.slow
def test_the_metadata_are_those_of_the_package_page(hooks, built):
    """The wheel's description is README.md for its readers; its addresses are those of the citation."""
    with zipfile.ZipFile(built[0]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    address = hooks.repository_address((ROOT / "CITATION.cff").read_text())
    page = hooks.package_page((ROOT / "README.md").read_text(), address)
    assert metadata.get_payload().strip() == page.encode().decode("ascii", "surrogateescape").strip()
    assert bool(metadata.get_all("Project-URL")) == bool(address)


@pytest.mark.parametrize("package", ["rocattn", "profiling/rocattn_profiling"])
def test_no_message_names_a_document(package):
    """A wheel has none: what a message says stands in the message."""
    named = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in messages(path)
        if re.search(r"\bdocs/\S+\.md|\b(?:README|CONTRIBUTING)\b", node.value)
    ]
    assert not named


def messages(path):
    """Yield the string constants of a module that are no docstrings."""
    alone = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node


def test_this_project_is_installed_by_one_spelling():
    """Inside the clone, where the reader stands: ``.``, with extras, and editable for those who change kernels."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    told = {
        match
        for page in pages
        for match in re.findall(r"pip install ((?:-e )?[^\s`]*(?:\.|rocattn)[^\s`]*)", page.read_text())
        if not match.startswith(("'rocattn[", "rocattn["))  # an extra of what is installed
    }
    assert told == {".", "'.[toolchain]'", "-e '.[toolchain]'"}


def door(command):
    """Return the ``rocattn`` lines of the README's block that has a command."""
    (text,) = (block.text for block in blocks(ROOT / "README.md") if block.language == "sh" and command in block.text)
    return "\n".join(line for line in text.splitlines() if line.startswith("rocattn"))


def run(lines, installed, folder):
    """Run commands in a folder whose only help is the environment; return the status and all that was printed."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    env |= compiler_environment() | {"PATH": os.pathsep.join([str(installed), env["PATH"]]), "HOME": str(folder)}
    env |= {"ROCATTN_CACHE_DIR": os.environ.get("ROCATTN_CACHE_DIR", str(folder / "cache")), "NO_COLOR": "1"}
    done = subprocess.run(
        ["bash", "-ec", lines], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


@pytest.mark.slow
def test_who_changes_kernels_finds_the_spill(installed, tmp_path):
    """Two code objects of a HIP kernel, the second one with fewer registers than it needs."""
    (tmp_path / "mirror.hip").write_text(KERNEL)
    status, printed = run(f"python - <<'END'\n{COMPILE}END", installed, tmp_path)
    assert status == 0, printed
    status, printed = run(door("kernels audit before"), installed, tmp_path)
    if lacking := re.search(r"no llvm-objdump for .*", printed):
        pytest.skip(lacking[0])
    assert status == 1, printed
    assert "mirror" in printed
    assert "spill" in printed


@pytest.mark.slow
def test_a_project_with_benchmarks_gets_its_line(installed, tmp_path, repo, monkeypatch):
    """An asv suite on a branch that does twice the work: the gate fails, and names the changed line."""
    monkeypatch.setenv("ROCATTN_OFFLINE", "1")
    repo.put("pyproject.toml", PYPROJECT)
    repo.put("tinylib/__init__.py", LIBRARY)
    repo.put("benchmarks/asv.conf.json", '{"version": 1, "project": "tinylib", "repo": "..", "benchmark_dir": "."}')
    repo.put("benchmarks/bench_work.py", SUITE)
    repo.put(".gitignore", "out/\n__pycache__/\ncache/\n")
    repo.commit("first")
    repo.git("checkout", "--quiet", "-b", "change")
    repo.commit("slower", **{"tinylib/__init__.py": LIBRARY.replace("TICKS += n", "TICKS += 2 * n")})
    status, printed = run(door("gate run --base main"), installed, repo.root)
    assert status == 1, printed
    assert "tinylib/__init__.py:" in printed
    assert (repo.root / "out/gate/index.html").exists()


@pytest.mark.slow
def test_who_has_a_profile_reads_what_bounds_it(installed, tmp_path):
    """A workload folder of rocprof-compute; the page, and a summary on the terminal."""
    folder = tmp_path / "workloads/my_run/MI300X_A1"
    folder.mkdir(parents=True)
    older_generators.merged(folder / "pmc_perf.csv", generators.launches(), [["SQ_WAVES", "GRBM_GUI_ACTIVE"]])
    older_generators.sysinfo(folder, "2")
    status, printed = run(door("rocattn report"), installed, tmp_path)
    assert status == 0, printed
    assert (tmp_path / "out/report/profile.html").exists()


@pytest.mark.slow
def test_the_wheel_holds_the_code_and_nothing_else(built):
    """Both packages, all kernel sources and all page templates are in; tests, benchmarks and results are not."""
    with zipfile.ZipFile(built[0]) as wheel:
        names = set(wheel.namelist())
    tops = {name.split("/")[0] for name in names}
    assert tops == {"rocattn", "rocattn_profiling", f"rocattn-{PROJECT['version']}.dist-info"}
    kernels = {f"rocattn/{path.relative_to(ROOT)}" for path in (ROOT / "kernels").rglob("*") if path.is_file()}
    assert kernels
    assert kernels <= names
    templates = (ROOT / "profiling/rocattn_profiling").rglob("*.j2")
    expected = {path.relative_to(ROOT / "profiling").as_posix() for path in templates}
    assert expected
    assert expected <= names
    assert {"rocattn/py.typed", "rocattn_profiling/py.typed"} <= names


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    """The sdist carries suites, tests and asv's configuration, and its wheel has the same files."""
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        # Debian 12's Python 3.11.2 has no filters yet; from 3.12 on, leaving them out warns.
        safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **safely)  # noqa: S202 - an archive that this test made
    (tree,) = tmp_path.iterdir()
    for needed in (
        "asv.conf.json",
        "benchmarks",
        "tests",
        "kernels",
        ".rocattn/gate",
        "dev.py",
        "requirements.lock",
        "Makefile",
    ):
        assert (tree / needed).exists(), needed
    (again,) = build(tree, tmp_path / "again", "--wheel")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert sorted(first.namelist()) == sorted(second.namelist())


def test_the_editable_install_reads_the_checkout():
    """Edits are seen at once: both packages come from this folder through a .pth of two lines."""
    site = Path(sysconfig.get_paths()["purelib"])
    lines = [pth.read_text("utf-8").splitlines() for pth in site.glob("_*rocattn*.pth")]
    if not lines:
        pytest.skip("rocattn is not installed as editable here")
    assert [(site / line).resolve() for line in lines[0]] == [ROOT, ROOT / "profiling"]
    code = "import rocattn, rocattn_profiling; print(rocattn.__file__); print(rocattn_profiling.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    expected = [ROOT / "rocattn/__init__.py", ROOT / "profiling/rocattn_profiling/__init__.py"]
    assert [Path(line) for line in done.stdout.splitlines()] == expected


def test_profiling_is_not_a_package():
    """Python 3.15 has a stdlib package ``profiling`` (PEP 799) that cProfile imports.

    A ``profiling/__init__.py`` at the root of the repository would shadow it for everyone who starts Python here:
    ``import cProfile`` (so pytest-benchmark, too) would end in "No module named 'profiling.tracing'". A folder
    without ``__init__.py`` loses to the stdlib's package. Nothing breaks before 3.15, so this test watches.
    """
    assert not (ROOT / "profiling" / "__init__.py").exists()
    assert (ROOT / "profiling" / "rocattn_profiling" / "__init__.py").exists()
    env = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    subprocess.run([sys.executable, "-c", "import cProfile; cProfile.Profile()"], cwd=ROOT, env=env, check=True)


def test_the_version_has_one_value():
    """pyproject.toml, the package, the citation and the newest entry of the changelog say the same version."""
    assert rocattn.__version__ == PROJECT["version"]
    assert f"\nversion: {PROJECT['version']}\n" in (ROOT / "CITATION.cff").read_text()
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == PROJECT["version"]


def test_the_release_is_described_without_a_registry():
    """How a version is published is said by name: an address would be a reader's to follow, and another's to change."""
    assert not re.search(r"https?://[^\s)]*pypi", (ROOT / "CONTRIBUTING.md").read_text(), re.IGNORECASE)


def test_the_citation_is_valid():
    """CITATION.cff keeps to the schema of its format."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.citation-file-format"]
    subprocess.run([*command, ROOT / "CITATION.cff"], check=True)


def test_a_release_has_the_tags_version(tmp_path):
    """The script of the release workflow fails for a tag whose files were not built, without a traceback."""
    for suffix in ("-py3-none-any.whl", ".tar.gz"):
        (tmp_path / f"rocattn-1.2.0{suffix}").write_text("built")
    script = ["bash", ROOT / ".github/scripts/try_release.sh", "named", tmp_path]
    statuses = {tag: subprocess.run(script, env=os.environ | {"TAG": tag}, check=False).returncode for tag in TAGS}
    assert statuses == TAGS


def test_the_lock_names_no_address_and_covers_every_dependency():
    """requirements.lock holds names, versions and hashes only, and has each dependency of pyproject.toml."""
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["toolchain"]]
    wanted += [name for group in groups.values() for name in group if isinstance(name, str)]
    missing = {re.match(r"[A-Za-z0-9_-]+", name)[0].lower().replace("_", "-") for name in wanted} - locked
    assert not missing
