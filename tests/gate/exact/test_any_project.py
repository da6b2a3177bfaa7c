"""Machine code of any project in the gate: files that a build leaves, and kernels of a program in two environments."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.gate.formats import markdown
from rocattn_profiling.gate.options import CodeObjects, Options

from ...kernels.audit.test_other_files import KERNEL
from ...kernels.test_capture import PROGRAM, TRITON
from ...test_not_compared import NUMBERS
from ..conftest import gate_run

pytestmark = pytest.mark.slow
SOURCE = '#include "size.h"\n\ntemplate <int N>\n__global__ void __launch_bounds__(64)\nadd(float* x) {}\n'
OTHERS = ("_ZN2me3addILi3EEvPf", "_ZN2me3addILi5EEvPf")
NAMES = ("_ZN2me3addILi64EEvPf", "_ZN2me3addILi128EEvPf", "plain")


def whole(name, vgprs):
    """Return the text of a kernel, which says all its numbers."""
    said = "".join(f"    .{each}\n" for each in NUMBERS).replace("vgpr_count: 8", f"vgpr_count: {vgprs}")
    said = said.replace("workgroup_size: 64", "workgroup_size: 256")
    metadata = f"\t.amdgpu_metadata\n---\namdhsa.kernels:\n  - .name: {name}\n{said}...\n\t.end_amdgpu_metadata\n"
    return KERNEL.replace("{name}", name).replace("vgpr 8", f"vgpr {vgprs}") + metadata


def assembly(vgprs, *names):
    """Kernels that need so many VGPRs."""
    return "".join(whole(name, vgprs).format(target="gfx942") for name in names)


@pytest.fixture
def kernels(repo, offline, monkeypatch):
    """A project without Python, whose kernels a build makes of assembly text."""
    repo.commit("kernels", **{
        ".gitignore": "out/\n", "src/add.hip": SOURCE, "src/size.h": "// 64\n", "k.s": assembly(8, *NAMES),
    })  # fmt: skip
    monkeypatch.chdir(repo.root)
    return repo


BUILD = ("--code-objects", "build/*.s", "--build", "mkdir build && cp k.s build/all.s")


def gate(*arguments):
    """Run the command; return its exit status and the verdict."""
    return gate_run(".", "--no-noise", *arguments)


def test_lost_waves_of_what_a_build_leaves_are_red(kernels):
    """Exactly the kernels that changed, by readable names, at the kernel's line in comment and SARIF."""
    kernels.commit("more registers", **{"k.s": assembly(8, NAMES[2]) + assembly(200, *NAMES[:2])})
    status, result = gate(*BUILD)
    found = {entry.label: (entry.status, entry.base, entry.head, entry.place) for entry in result.entries}
    worse = {label: of for label, of in found.items() if of[0] == "regression"}
    assert (status, sorted(worse)) == (1, ["add [ILi128EEvPf]", "add [ILi64EEvPf]"])
    assert {of[1:3] for of in worse.values()} == {(8, 2)}
    assert {(of[3].path, of[3].line) for of in worse.values()} == {("src/add.hip", 5)}
    assert found["1 kernels"][0] == "pass"
    assert "VGPRs 8 -> 200" in result.entries[0].causes[0].text
    assert str(kernels.root) not in Path("out/verdict.json").read_text()
    for finding in json.loads(Path("out/gate.sarif").read_text())["runs"][0]["results"]:
        place = finding["locations"][0]["physicalLocation"]
        assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("src/add.hip", 5)
    assert "ILi64EEvPf" in markdown.comment(result)
    assert "--code-objects" in result.again
    assert "--build" in result.again


def test_a_changed_line_of_the_kernels_sources_is_the_cause(kernels):
    """The file that defines it before others of its language."""
    changed = {"k.s": assembly(200, *NAMES), "src/size.h": "// 128\n"}
    kernels.commit("header", **changed)
    _, result = gate(*BUILD)
    assert [cause.location.path for cause in result.entries[0].causes if cause.kind == "source"] == ["src/size.h"]
    kernels.commit("both", **{"src/size.h": "int x;\n", "src/add.hip": SOURCE.replace("{}", "{ x[0] = 1; }")})
    kernels.commit("registers", **{"k.s": assembly(400, *NAMES)})
    _, result = gate(*BUILD, "--base", "HEAD~2")
    (cause,) = (cause for cause in result.entries[0].causes if cause.kind == "source")
    assert (cause.location.path, cause.location.line) == ("src/add.hip", 5)


def test_a_kernels_source_is_the_last_cause_of_a_slower_program(kernels):
    """Which files a program is built from is not known, but what explains the machine code already is."""
    program = '{"name": "x", "unit": "us", "value": 100}\n'
    kernels.commit("program", **{"work.json": program})
    source = SOURCE.replace("{}", "{ x[0] = 1; }")
    kernels.commit(
        "both", **{"k.s": assembly(200, *NAMES), "src/add.hip": source, "work.json": program.replace("1", "2")}
    )
    _, result = gate(*BUILD, "--quick", "--command", "cat work.json", "--results", "jsonl")
    slower = next(entry for entry in result.entries if entry.label == "x")
    paths = [cause.location.path for cause in slower.causes]
    assert (paths[0], paths[-1]) == ("work.json", "src/add.hip")


@pytest.mark.parametrize(
    ("arguments", "files", "status", "said"),
    [
        (("--code-objects", "*.s"), {"readme": "x"}, 0, "no worse"),
        (("--code-objects", "*.co"), {"readme": "x"}, 3, "base's *.co (no file matches)"),
        (("--code-objects", "*.s", "--code-objects", "*.hip"), {"x.hip": ""}, 3, "base's *.hip (no file matches)"),
        (("--code-objects", "*.s", "--arch", "gfx90a"), {"readme": "x"}, 3, "no kernels for gfx90a"),
        (("--code-objects", "*.s"), {"k.s": "nothing"}, 3, "it contains no AMD GPU assembly"),
        (("--code-objects", "*.s"), {"k.s": assembly(8, "other")}, 3, "nothing was compared"),
        (("--code-objects", "*.s"), {"k.s": assembly(8, *OTHERS, NAMES[2])}, 3, "each side has several"),
        (("--code-objects", "*.s"), {"k.s": assembly(8, *NAMES[:2])}, 0, "1 removed"),
    ],
)
def test_what_was_not_compared_is_no_pass(kernels, arguments, files, status, said):
    """Files of one side only, other architectures, damaged ones, kernels without a partner."""
    kernels.commit("change", **files)
    got, result = gate(*arguments)
    assert (got, said in f"{result.sentence}; {result.counts.get('removed', 0)} removed") == (status, True), result


def test_a_build_that_fails_ends_it(kernels, capsys):
    """And says whose."""
    kernels.git("rm", "-q", "k.s")
    kernels.commit("gone")
    assert gate(*BUILD) == (3, None)
    assert "--build" in capsys.readouterr().err


def environment(folder, version, vgprs):
    """Make an environment with the tests' tiny Triton, whose kernels need so many VGPRs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    for name, content in TRITON.items():
        path = site / "triton" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content.replace("{kernel!r}", repr(whole("{name}", vgprs))).replace("9.9.9", version))
    info = site / f"triton-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: triton\nVersion: {version}\n")


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    """Two environments: the newer Triton needs more registers."""
    root = tmp_path_factory.mktemp("tritons")
    environment(root / "old", "9.9.9", 8)
    environment(root / "new", "9.9.10", 200)
    return root


@pytest.fixture
def upgrade(environments, tmp_path, monkeypatch):
    """Return a function that gates a program's kernels between them."""
    monkeypatch.chdir(tmp_path)

    def run(text, *arguments, base="old", head="new"):
        (tmp_path / "bench.py").write_text(PROGRAM + text)
        pythons = ["--base-python", str(environments / base), "--head-python", str(environments / head)]
        return gate(*pythons, "--kernels", "python bench.py", "--arch", "gfx942", "gfx90a", *arguments)

    return run


def test_an_upgrade_that_costs_waves_is_red(upgrade):
    """On the architecture that loses them; each variant by its constants, at the program's own line."""
    status, result = upgrade("for size in (64, 128): kernel.run(None, 1, size)\n")
    found = {(entry.label, entry.arch): entry.status for entry in result.entries}
    worse = [(f"add [BLOCK={size}]", arch) for arch in ("gfx90a", "gfx942") for size in (128, 64)]
    assert (status, sorted(key for key, of in found.items() if of == "regression")) == (1, sorted(worse))
    texts = [cause.text for cause in result.entries[0].causes]
    assert (
        texts[0] == "compiled by Triton 9.9.9 with LLVM 24.1.0git before and by Triton 9.9.10 with LLVM 24.1.0git now"
    )
    assert "waves per SIMD" in texts[1]
    assert (result.entries[0].place.path, result.entries[0].place.line) == ("bench.py", 7)
    assert result.environment_differences == {"triton": ("9.9.9", "9.9.10")}
    assert "--kernels 'python bench.py' --arch gfx942 gfx90a" in result.again


def test_the_same_environment_twice_is_green(upgrade):
    """The mend of an upgrade is, too; what compiles on neither side is listed."""
    status, result = upgrade("tuned.run(None, 1)\n", base="new")
    assert (status, [entry.status for entry in result.entries]) == (0, ["pass", "pass"])
    assert [(gap.what, gap.needed) for gap in result.not_compared] == [
        ("add on gfx90a", False), ("add on gfx942", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kernel.run(None, 1, 64)\nsys.exit('wrong result')\n", "the program failed on gfx942"),
        ("", "its program compiled no Triton kernel"),
        (
            "for n in (4, 8 if triton.__version__ == '9.9.9' else 16): kernel.run(None, 1, 64, n)\n",
            "the other side lacks it",
        ),
    ],
)
def test_kernels_that_were_not_reached_are_no_pass(upgrade, text, said):
    """The program failed, launches nothing, or launches others."""
    status, result = upgrade(text, head="new" if "version" in text else "old")
    assert status == (1 if "version" in text else 3)  # the others lost waves
    assert any(said in gap.text for gap in result.not_compared), result.not_compared


def test_a_new_failure_to_compile_is_red(upgrade, environments):
    """It compiled before."""
    text = "kernel.run(None, 1, 64)\nkernel.run(None, 1, 13 if triton.__version__ == '9.9.10' else 128)\n"
    status, result = upgrade(text)
    assert status == 1
    assert "it no longer compiles: ValueError: 13 brings bad luck" in [entry.reason for entry in result.entries]


def test_a_revision_that_asks_for_another_triton_is_compared(repo, offline, environments, monkeypatch):
    """Each side's program runs in its own checkout, on its own side's Triton."""
    repo.commit("one", **{".gitignore": "out/\n", "bench.py": f"{PROGRAM}kernel.run(None, 1, 64)\n", "env": "old"})
    repo.commit("two", env="new")
    monkeypatch.chdir(repo.root)
    program = f'"{environments}/$(cat env)/bin/python" bench.py'
    status, result = gate("--kernels", program, "--arch", "gfx942")
    assert (status, [entry.status for entry in result.entries]) == (1, ["regression"])
    assert result.entries[0].place.path == "bench.py"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kernels": ("python x.py",)}, "name the architectures with --arch"),
        ({"kernels": ("python x.py",), "archs": ("gfx1",)}, "gfx1"),
        ({"archs": ("gfx942",)}, "--arch goes with --code-objects or --kernels"),
        (
            {"code_objects": (CodeObjects(files=("*.s",)),), "base_python": "a", "head_python": "b"},
            "audit NEW --against",
        ),
        ({"kernels": ("x",), "archs": ("gfx942",), "exact": False}, "--no-exact skips machine code"),
        ({"code_objects": (CodeObjects(files=("../*.s",)),)}, "inside the repository"),
        ({"builds": ("make",)}, "--build makes the checkouts"),
    ],
)
def test_options_that_contradict_are_refused(options, said):
    """Before anything is built."""
    with pytest.raises(RocattnError, match=said):
        Options(**options).check()
