"""``rocattn kernels audit``: statuses, files, pins, and other people's files."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn.gpu.arch import processor
from rocattn.sources import kernel_root
from rocattn.toolchain import choose_compiler, compile_hip
from rocattn_profiling import cli
from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.kernels import revision, shipped
from rocattn_profiling.kernels.audit import SCHEMA, Audit
from rocattn_profiling.kernels.read.disassembly import DisassemblyError

from ...screens import line, screen

KERNEL = """\
#include <rocattn/device.h>
using namespace rocattn;
ROCATTN_KERNEL(twice, 64, (float* x, u32 count)) {
    for (u32 i = thread_id(); i < count; i += 64) x[i] *= 2.0f;
}
"""
CONFLICT = (
    "rocattn kernels: {} contains unresolved merge-conflict markers: take either side, then write them "
    "again with `rocattn kernels audit --write-pins`\n"
)
pytestmark = pytest.mark.usefixtures("kernel_cache")


@pytest.fixture
def few(monkeypatch):
    """Ship two small kernels for gfx1100 and gfx942, whatever is asked for."""

    def chosen(archs, *, quick=False):
        names = {"scale"} if quick else {"scale", "flash_decode_combine f16"}
        wanted = {processor(arch) for arch in archs}
        return [one for one in everything(["gfx1100", "gfx942"]) if one.name in names and one.arch in wanted]

    everything = shipped.shipped_kernels
    monkeypatch.setattr(shipped, "shipped_kernels", chosen)
    monkeypatch.setattr("rocattn_profiling.kernels.source_lines.shipped_kernels", chosen)


@pytest.fixture
def audit(tmp_path, capsys, few):
    """Return a function that runs the command and gives its status, stdout and stderr."""

    def run(*arguments):
        status = cli.main(["kernels", "audit", "--jobs", "1", "--out", str(tmp_path / "out"), *map(str, arguments)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


@pytest.fixture
def code(tmp_path):
    """A kernel of somebody else: (code object, assembly text) as files."""
    source = tmp_path / "twice.hip"
    source.write_text(KERNEL)
    made = compile_hip(source, "gfx1100")
    (tmp_path / "twice.hsaco").write_bytes(made.data)
    (tmp_path / "twice.s").write_text(made.assembly)
    return tmp_path / "twice.hsaco", tmp_path / "twice.s"


def test_what_is_shipped_is_tabled_and_written(audit, tmp_path):
    """A table for people, JSON and Markdown for the rest; nothing was compared, so nothing failed."""
    status, out, err = audit("--arch", "gfx1100")
    assert (status, out) == (0, "")
    assert "flash_decode_combine f16" in err
    made = msgspec.json.decode((tmp_path / "out/audit.json").read_bytes(), type=Audit)
    assert [facts.name for facts in made.kernels] == ["flash_decode_combine f16", "scale"]
    for facts in made.kernels:
        assert facts.vgprs > 0
        assert facts.code_bytes > 0
        assert facts.occupancy.waves_per_simd == 16
        assert facts.loop.issue_cycles > 0
        assert facts.compiler == choose_compiler().version
    assert "| scale | gfx1100 |" in (tmp_path / "out/audit.md").read_text()


def test_json_is_alone_on_stdout(audit):
    """The whole record, for programs."""
    status, out, _ = audit("--arch", "gfx942", "--json")
    assert status == 0
    found = json.loads(out)
    assert {one["arch"] for one in found["audit"]["kernels"]} == {"gfx942"}
    assert found["comparison"] is None


def test_the_second_audit_takes_facts_from_the_cache(audit, monkeypatch):
    """What was looked at once by the same code is not read again."""
    first = audit("--arch", "gfx1100", "--json")[1]

    def fail(*_):
        raise AssertionError("looked at again")

    monkeypatch.setattr(shipped, "facts_of_code", fail)
    assert audit("--arch", "gfx1100", "--json")[1] == first


def test_pins_hold_both_ways(audit, tmp_path):
    """Written and checked: fine; a better or worse pin, a kernel too many or too few: status 1 with what to do."""
    pins = tmp_path / "pins"
    status, _, err = audit("--check-pins", "--pins", pins)
    assert status == 4
    assert "--write-pins" in err
    assert audit("--write-pins", "--pins", pins)[0] == 0
    assert sorted(path.name for path in pins.iterdir()) == ["gfx1100.json", "gfx942.json"]
    status, out, _ = audit("--check-pins", "--pins", pins)
    assert (status, out.splitlines()) == (
        0, ["no kernel got worse or better", "4 variants of this checkout against the pins: 4 unchanged"],
    )  # fmt: skip
    path = pins / "gfx1100.json"
    good = json.loads(path.read_text())

    def check(change, name="scale"):
        pinned = json.loads(json.dumps(good))
        change(pinned["kernels"], pinned["kernels"][name])
        path.write_text(json.dumps(pinned))
        return audit("--check-pins", "--pins", pins)

    status, out, _ = check(lambda _, pin: pin["loop"]["cycles"].update(all=pin["loop"]["cycles"]["all"] * 0.9))
    assert (status, line(out, "on gfx1100:").partition(" issues ")[0]) == (1, "scale on gfx1100: the hot loop")
    assert "scale.hip:" in out  # the lines of the hot loop
    status, out, _ = check(lambda _, pin: pin.update(vgpr_spills=3))
    assert (status, out.splitlines()[0]) == (1, "1 kernel better on 1 of 2 architectures: scale")
    assert "--write-pins" in out
    status, out, _ = check(lambda pins, _: pins.pop("scale"))
    assert (status, line(out, "no pin")) == (1, "scale on gfx1100: it has no pin yet")
    status, out, _ = check(lambda pins, pin: pins.update(gone=pin))
    assert (status, line(out, "is pinned")) == (1, "gone on gfx1100: it is pinned, but no longer built")
    status, out, _ = check(lambda _, pin: pin.update(vgprs=pin["vgprs"] - 1))
    assert (status, "1 changed without consequence" in out) == (0, True)
    path.write_text(json.dumps({**good, "compiler": "clang version 23"}))
    assert audit("--check-pins", "--pins", pins)[0] == 0  # nothing differs, whoever compiled it


def test_pins_of_an_architecture_without_kernels_are_asked_away(audit, tmp_path):
    """The file that an architecture leaves behind is not the truth any more; a sibling's pins are checked by name."""
    pins = tmp_path / "pins"
    audit("--write-pins", "--pins", pins)
    text = (pins / "gfx942.json").read_text()
    (pins / "gfx940.json").write_text(text.replace("gfx942", "gfx940"))
    assert audit("--check-pins", "--pins", pins)[0] == 0
    (pins / "gfx9999.json").write_text(text.replace("gfx942", "gfx9999"))
    for quick in ((), ("--quick",)):
        found = audit("--check-pins", "--pins", pins, *quick)
        assert (found[0], found[1].count("gfx9999: it has pins"), found[1].count("gfx9999.json")) == (1, 1, 1)
    assert audit("--check-pins", "--pins", pins, "--arch", "gfx942")[0] == 0
    (pins / "gfx9999.json").write_text("<<<<<<< HEAD\n")
    assert audit("--check-pins", "--pins", pins)[2] == CONFLICT.format(pins / "gfx9999.json")


def test_architecture_that_no_longer_compiles_is_worse(audit, tmp_path, monkeypatch):
    """Its pins are compared, too."""
    pins, all_facts = tmp_path / "pins", shipped.facts_of_all

    def broken(kernels, *args, **options):
        found = [one for one in all_facts(kernels, *args, **options)[0] if one.arch == "gfx1100"]
        return found, [shipped.Problem("no", one.name, one.arch) for one in kernels if one.arch == "gfx942"]

    audit("--write-pins", "--pins", pins)
    monkeypatch.setattr(shipped, "facts_of_all", broken)
    out = audit("--check-pins", "--pins", pins)[1]
    assert line(out, "scale on") == "scale on gfx942: it no longer compiles: no"


@pytest.mark.parametrize(
    ("planted", "status"), [({"lost_wave_slots": -1}, 1), ({"code_bytes": 1}, 3), ({"code_bytes": 1, "vgprs": 1}, 3)]
)
def test_pins_of_another_compiler_hold_waves_only(audit, tmp_path, planted, status):
    """What is that compiler's own is not compared: status 3."""
    pins = tmp_path / "pins"
    audit("--write-pins", "--pins", pins)
    path = pins / "gfx1100.json"
    pinned = json.loads(path.read_text())
    pinned["compiler"] = "clang version 23"
    pinned["kernels"]["scale"].update(planted)
    path.write_text(json.dumps(pinned))
    got, out, _ = audit("--check-pins", "--pins", pins)
    assert got == status
    assert ("clang version 23" in " ".join(out.split())) == (status == 3)


def test_unreadable_pins_fail_before_compilation(audit, tmp_path, monkeypatch):
    """A conflict in one file ends it at once, in one line; the kernels of other architectures would take minutes."""
    pins = tmp_path / "pins"
    audit("--write-pins", "--pins", pins)
    (pins / "gfx942.json").write_text("<<<<<<< HEAD\n")
    monkeypatch.setattr(shipped, "facts_of_all", None)
    assert audit("--check-pins", "--pins", pins)[::2] == (4, CONFLICT.format(pins / "gfx942.json"))


def test_a_quick_check_misses_no_kernel(audit, tmp_path):
    """Pins are of all kernels; --quick looks at some."""
    audit("--write-pins", "--pins", tmp_path / "pins")
    status, out, _ = audit("--check-pins", "--pins", tmp_path / "pins", "--quick")
    assert (status, "2 variants" in out) == (0, True)


LISTING = """\
from types import SimpleNamespace
def all_variants(archs):
    if archs[0] != "gfx1100":
        raise ValueError("no kernels for " + archs[0])
    facts = {"kernel": "scale", "source": "hip/scale.hip", "symbol": "scale_scores", "defines": {}, "arch": "gfx1100"}
    return [SimpleNamespace(**facts)]
"""


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository that ships one kernel: with 201 VGPRs in the first commit, with as few as needed in the second."""
    repo = tmp_path / "repo"
    shutil.copytree(kernel_root(), repo / "kernels")
    package = repo / "profiling/rocattn_profiling/kernels"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "build.py").write_text(LISTING)
    source = repo / "kernels/hip/scale.hip"
    good = source.read_text()
    monkeypatch.chdir(repo)
    git("init", "-q")
    source.write_text(good.replace("score *= scale;", 'score *= scale; asm volatile("" ::: "v200");'))
    git("add", ".")
    git("commit", "-qm", "one")
    source.write_text(good)
    git("commit", "-qam", "two")
    return repo


def git(*command):
    """Run git in the working directory."""
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *command], check=True)


def test_a_revision_is_compared_kernel_by_kernel(audit, repository):
    """Its own code says what it ships; its sources are compiled by today's compiler."""
    status, out, err = audit("--against", "HEAD~1")
    assert status == 0
    assert "changed: kernels/hip/scale.hip:" in out
    assert line(out, "scale on").startswith("scale on gfx1100: 6 -> 16 of 16 waves per SIMD: VGPRs 201 -> ")
    assert line(out, "combine f16 on") == "flash_decode_combine f16 on gfx942: only this checkout has it"
    assert line(err, "for gfx942").partition(": ")[2] == "gfx942: no kernels for gfx942"
    assert "2 variants" not in audit("--against", "HEAD", "--arch", "gfx1100")[1]
    listing = repository / "profiling/rocattn_profiling/kernels/build.py"
    listing.write_text("raise ImportError('of old')\n")
    status, _, err = audit("--against", "WORKTREE")
    assert (status, err.partition("+changes ")[2]) == (
        4,
        snapshot("does not list its kernels (ImportError: of old): it is too old to be audited\n"),
    )
    assert audit("--against", "no-such-revision")[0] == 4


def test_only_what_can_differ_from_a_revision_is_compiled(audit, repository, monkeypatch):
    """Equal sources and macros: no compiler starts. Another header or choice of tiles, or --all: it is compiled."""
    real, compiled = shipped.facts_of_all, []

    def watched(kernels, *arguments, **options):
        compiled.extend(one.name for one in kernels)
        return real(kernels, *arguments, **options)

    def looked_at(*arguments):
        compiled.clear()
        status, out, _ = audit("--arch", "gfx1100", "--quick", "--against", *arguments)
        return status, compiled.copy(), out.splitlines()

    monkeypatch.setattr(shipped, "facts_of_all", watched)
    short = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout[:10]
    with monkeypatch.context() as patched:
        patched.setattr("rocattn_profiling.kernels.audit.choose_compiler", None)
        assert looked_at("HEAD") == (0, [], [
            "no kernel got worse or better",
            f"1 variant with the same sources and macros as in HEAD ({short}): not compiled",
        ])  # fmt: skip
    assert looked_at("HEAD", "--all")[1] == ["scale", "scale"]
    header = repository / "kernels/include/rocattn/device.h"
    header.write_text(f"// of old\n{header.read_text()}")
    _, names, lines = looked_at("WORKTREE")
    assert (names, lines[0]) == (["scale", "scale"], "no kernel got worse or better")
    assert re.fullmatch(r"1 variant of this checkout against WORKTREE \(\w+\+changes\): 1 unchanged", lines[1])
    git("checkout", "-q", "kernels")
    listing = repository / "profiling/rocattn_profiling/kernels/build.py"
    listing.write_text(LISTING.replace('"defines": {}', '"defines": {"XCDS": 1}'))
    assert looked_at("WORKTREE")[1] == ["scale", "scale"]
    (scale,) = shipped.shipped_kernels(["gfx1100"], quick=True)
    absent = [(repository / name) for name in ("none", "nothing")]
    assert shipped.equal_kernels([scale], absent[0], [scale], absent[1]) == set()  # what cannot be read is not equal


def test_the_history_is_put_into_the_asv_store(audit, repository):
    """Each commit's numbers by arch and kernel, lower is better; what is known is not looked at again."""
    status, _, err = audit("--arch", "gfx1100", "--quick", "--history", "5")
    assert (status, line(err, "history:")) == (
        0,
        snapshot("history: 2 commits added to the asv store, 0 were already in it"),
    )
    series = {one.benchmark: one for one in AsvStore(repository).read()}
    assert set(series) == {f"{revision.SUITE}.{metric}" for metric in revision.TRACKED}
    assert {one.unit for one in series.values()} == {"registers", "waves", "cycles", "bytes"}
    vgprs, lost = (series[f"{revision.SUITE}.track_{name}"] for name in ("vgprs", "lost_wave_slots"))
    assert vgprs.params == {"arch": "gfx1100", "kernel": "scale"}
    by_value = sorted(point.value for point in vgprs.points)
    assert (len(by_value), by_value[1]) == (2, 201)
    assert sorted(point.value for point in lost.points) == [0, 10]
    err = audit("--arch", "gfx1100", "--quick", "--history", "5")[2]
    assert line(err, "history:") == snapshot("history: 0 commits added to the asv store, 2 were already in it")


def test_the_suite_tracks_the_same_numbers_in_the_same_units():
    """What asv runs and what --history stores are one series."""
    path = Path(__file__).parents[3] / "benchmarks/bench_audit.py"
    units = dict(re.findall(r'^    (track_\w+)\.unit = "([^"]+)"', path.read_text(), re.MULTILINE))
    assert units == {metric: unit for metric, (unit, _) in revision.TRACKED.items()}


def test_an_audit_file_is_compared_with(audit, tmp_path):
    """Two states without git: the JSON of one is what the other is compared with."""
    audit("--arch", "gfx1100")
    (tmp_path / "out/audit.json").rename(tmp_path / "before.json")
    status, out, _ = audit("--arch", "gfx1100", "--against", tmp_path / "before.json")
    assert (status, len(out.splitlines()), out.splitlines()[1][:10]) == (0, 2, "2 variants")
    status, _, _ = audit("--arch", "gfx942", "--against", tmp_path / "before.json")
    assert status == 3  # nothing in common: nothing was compared


def test_the_verdict_comes_before_what_changed(audit, tmp_path, monkeypatch):
    """One kernel got worse: its row and no other, in a screenful at 80 columns; --all shows the others, too."""
    audit("--arch", "gfx1100")
    before = json.loads((tmp_path / "out/audit.json").read_text())
    (scale,) = (one for one in before["kernels"] if one["kernel"] == "scale")
    scale["loop"]["issue_cycles"] *= 0.9
    scale["vgprs"] -= 1
    (tmp_path / "before.json").write_text(json.dumps(before))

    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = audit("--arch", "gfx1100", "--against", tmp_path / "before.json")
    lines = out.splitlines()
    assert (status, lines[0]) == (1, "1 kernel worse on gfx1100: scale")
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 80
    assert lines[3].split() == ["scale", "loop", "cycles", "VGPRs"]
    assert lines[4].split()[:5] == ["gfx1100", "1", "of", "1", "worse"]
    assert lines[4].endswith(f"+11.1 %  {scale['vgprs']} -> {scale['vgprs'] + 1}")
    assert "flash_decode_combine" not in out
    assert "flash_decode_combine f16" in audit("--arch", "gfx1100", "--against", tmp_path / "before.json", "--all")[2]


def test_what_is_left_out_is_in_a_named_file(audit, tmp_path, monkeypatch):
    """More rows, kernels and findings than are shown: the line says where they are, and there they are."""
    for most in ("_MOST_ROWS", "_MOST_KERNELS"):
        monkeypatch.setattr(f"rocattn_profiling.kernels.card.{most}", 1)
    monkeypatch.setattr("rocattn_profiling.kernels.card._MOST_OTHERS", 0)
    audit()
    before = json.loads((tmp_path / "out/audit.json").read_text())
    for one in before["kernels"]:
        one["occupancy"] = None  # as of a file that does not say
        one["loop"]["issue_cycles"] *= 0.9
        one["loop"]["schedule"]["loads_in_flight"] += 1
        one["loop"]["schedule"]["bytes_in_flight"] += 4
    (tmp_path / "before.json").write_text(json.dumps(before))
    out = audit("--against", tmp_path / "before.json")[1]
    written = tmp_path / "out/audit.md"
    named = [each for each in out.splitlines() if str(written) in each]
    assert named[:2] == [f"and 3 more rows in {written}", f"  and 1 more in {written}"]
    (rest,) = re.findall(f"^(\\w+): in {re.escape(str(written))}$", out, re.MULTILINE)
    assert written.read_text().count(f"\n- {rest} ") >= 2


def test_foreign_kernels_are_ranked_by_own_overlap_only(audit, tmp_path):
    """A higher issue bound puts no kernel before another, and the table says what it leaves out."""
    kernel = "\t.type {0},@function\n{0}:\n.L{0}:\n{1}\ts_cbranch_scc1 .L{0}\n\ts_endpgm\n\t.size {0}, 1\n"
    kernel += "\t.amdhsa_kernel {0}\n\t\t.amdhsa_next_free_vgpr 8\n\t.end_amdhsa_kernel\n"
    product = "\tv_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]\n"
    vector = "\tv_add_f32_e32 v4, v5, v6\n"
    paths = []
    for name, body in (("a", product + vector * 40), ("b", product), ("c", (product + vector * 12) * 2)):
        paths.append(tmp_path / f"{name}.s")
        text = kernel.format(f"kernel_{name}", body)
        paths[-1].write_text(f'\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n{text}')
    assert "ranks no" not in audit(*paths)[2]
    status, out, err = audit(*paths, "--json", "--all")
    bounds = [one["loop"]["issue_bound_pct"] for one in json.loads(out)["audit"]["kernels"]]
    assert status == 0
    assert bounds[0] < bounds[1] > bounds[2]
    assert [line.split()[0][-1] for line in err.splitlines() if line.startswith(" kernel_")] == [*"abc", *"cab"]
    assert line(err, "ranks no") == snapshot(
        "issue bound %: what the matrix unit could use if nothing waited: it ranks no kernels"
    )
    assert "ranks no" in (tmp_path / "out/audit.md").read_text()
    assert "ceiling" not in out + err


def test_an_audit_of_an_older_version_is_refused(audit, tmp_path):
    """Its numbers have other names; the line says what to do."""
    audit("--arch", "gfx1100")
    path = tmp_path / "out/audit.json"
    path.write_text(path.read_text().replace(f'"schema": {SCHEMA}', '"schema": 1'))
    status, _, err = audit("--arch", "gfx1100", "--against", path)
    refusal = f"rocattn kernels: {path} is an audit of version 1, this tool reads {SCHEMA}: write it again\n"
    assert (status, err) == (4, refusal)


def test_other_peoples_files_work_and_say_what_is_not_known(audit, code):
    """Code object and assembly: the same registers; the block and the LDS of the launch are not in either."""
    binary, text = code
    shutil.move(text, text.with_name("other.s"))  # beside it, it would be used
    status, out, err = audit(binary, text.with_name("other.s"), "--json")
    assert status == 0
    one, other = json.loads(out)["audit"]["kernels"]
    for key in ("kernel", "arch", "vgprs", "sgprs", "lds_bytes", "block", "code_bytes", "occupancy", "kernarg_bytes"):
        assert one[key] == other[key]
    assert one["kernel"] == "twice"
    assert "clang" in one["compiler"]
    assert other["loop"]["issue_cycles"] > 0
    assert [each for each in err.splitlines() if "not known" in each] == snapshot(
        [
            "not known: the launch's dynamic LDS (Triton's `shared`): give it with --dynamic-lds",
            "not known: the launch's block: 64 threads, its limit, are assumed",
        ]
    )
    assert line(err, "its limit") == snapshot("not known: the launch's block: 64 threads, its limit, are assumed")


def test_what_lies_beside_a_file_is_used(audit, code, monkeypatch, tmp_path):
    """Assembly of the same build has the instructions, Triton's JSON the launch; of another build it is not used."""

    def none(device):
        raise DisassemblyError("no llvm-objdump here")

    monkeypatch.setattr("rocattn_profiling.kernels.foreign.disassemble", none)
    binary, text = code
    binary.with_suffix(".json").write_text('{"shared": 40000, "num_warps": 2, "warp_size": 32, "name": "twice"}')
    status, out, _ = audit(binary, "--json")
    (one,) = json.loads(out)["audit"]["kernels"]
    assert (status, one["lds_bytes"], one["block"], one["unknown"]) == (0, 40000, 64, [])
    assert one["loop"]["issue_cycles"] > 0
    assert json.loads(audit(binary, "--json", "--dynamic-lds", "0")[1])["audit"]["kernels"][0]["lds_bytes"] == 0
    assert audit(binary)[0] == 0
    (tmp_path / "out/audit.json").rename(tmp_path / "before.json")
    whole = text.read_text()
    text.write_text(re.sub(r"codeLenInByte = \d+", "codeLenInByte = 4", whole))  # of before a barrier was added
    status, out, _ = audit(binary, "--against", tmp_path / "before.json")
    assert status == 3
    assert (out.splitlines()[0], out.splitlines()[-1]) == snapshot(
        (
            (
                "no kernel got worse or better in what was compared; not compared: hot loop of 1 kernel (no "
                "llvm-objdump here; twice.s next to it is from another …)"
            ),
            "  hot loop of 1 kernel: no llvm-objdump here; twice.s next to it is from another build",
        )
    )
    text.write_text(whole.replace(".sgpr_count:", ".sgpr_count: 9"))
    binary.with_suffix(".json").write_text("[]")
    (one,) = json.loads(audit(binary, "--json")[1])["audit"]["kernels"]
    assert one["loop"] is None
    assert one["unknown"][0].startswith("no instructions: no llvm-objdump here; twice.s next to")
    assert len(one["unknown"]) == 3


def test_the_legend_is_of_columns_with_values(audit, code, tmp_path):
    """A kernel without a product or LDS: what those columns mean is said nowhere."""
    err = audit(code[1])[2]
    legend = [line for line in err.splitlines() if re.match(r"[\w %/]+: ", line) and "known" not in line]
    assert legend[:-1] == [
        "waves: per SIMD, of its wave slots",
        "cycles: issue cycles per iteration of the hot loop, of one wave",
        "lines x: cache lines of global memory touched, over the least for the bytes moved",
        "in flight: loads of global memory",
    ]
    assert line((tmp_path / "out/audit.md").read_text(), "- waves: ") == f"- {legend[0]}"
    product = "\tv_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]\n"
    text = f"\t.type k,@function\nk:\n.Lk:\n{product}\ts_cbranch_scc1 .Lk\n\ts_endpgm\n\t.size k, 1\n"
    text += "\t.amdhsa_kernel k\n\t\t.amdhsa_next_free_vgpr 8\n\t.end_amdhsa_kernel\n"
    path = tmp_path / "product.s"
    path.write_text(f'\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n{text}')
    err = audit(path, "--all")[2]
    assert line(err, "products: ") == "products: of 16x16x16, per iteration of the hot loop"
    assert "\nissue bound %: " in err


def test_the_launch_of_a_file_can_be_said(audit, code):
    """Block and LDS change the occupancy, and are no longer unknown."""
    status, out, err = audit(code[1], "--block", "32", "--dynamic-lds", "32768", "--json")
    assert status == 0
    (one,) = json.loads(out)["audit"]["kernels"]
    assert (one["block"], one["lds_bytes"], one["occupancy"]["binding"]["name"]) == (32, 32768, "LDS")
    assert "not known" not in err


def test_empty_choice_of_architectures_lists_the_others(audit, code):
    """A file for another processor is not an empty one."""
    status, _, err = audit(*code, "--arch", "gfx942", "gfx950")
    assert status == 3
    assert err.splitlines()[0] == "no kernels for gfx942 or gfx950: they are for gfx1100"


def test_any_file_name_can_be_audited_and_once_is_enough(audit, code, tmp_path):
    """Names are bytes, which need not be text; a file that is named twice is one."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n.s"))
    shutil.copy(code[1], path)
    status, out, err = audit(path, path, "--json")
    (one,) = json.loads(out)["audit"]["kernels"]
    assert (status, one["file"].rpartition("/")[2]) == (0, r"\udcff\n.s")
    assert "1 kernel of" in err


def test_what_the_cycles_leave_out_is_said(audit, tmp_path):
    """A loop that calls a function costs more than its own instructions; one without a loop is what it says."""
    kernel = "\t.type {0},@function\n{0}:\n.L{0}:\n{1}\ts_endpgm\n\t.size {0}, 1\n"
    kernel += "\t.amdhsa_kernel {0}\n\t\t.amdhsa_next_free_vgpr 8\n\t.end_amdhsa_kernel\n"
    calls = kernel.format("calls", "\ts_swappc_b64 s[30:31], s[4:5]\n\ts_cbranch_scc1 .Lcalls\n")
    path = tmp_path / "two.s"
    path.write_text(f'\t.amdgcn_target "amdgcn-amd-amdhsa--gfx942"\n{calls}{kernel.format("plain", "")}')
    status, _, err = audit(path)
    assert status == 0
    said = "it calls or jumps to addresses in registers: code there is not counted"
    assert line(err, "of calls: ") == f"cycles of calls: {said}"
    assert f"- calls: cycles: {said}\n" in (tmp_path / "out/audit.md").read_text()
    assert "no loop" not in err


def test_a_file_is_compared_with_its_older_self(audit, code, tmp_path):
    """The ratchet works for everyone's kernels."""
    text = code[1]
    audit(text)
    (tmp_path / "out/audit.json").rename(tmp_path / "before.json")
    assert audit(text, "--against", tmp_path / "before.json")[0] == 0
    worse = text.read_text().replace(".vgpr_spill_count: 0", ".vgpr_spill_count: 7")
    assert worse != text.read_text()
    text.write_text(worse)
    status, out, _ = audit(text, "--against", tmp_path / "before.json")
    assert (status, line(out, "twice on ").partition(";")[0]) == (1, "twice on gfx1100: 7 VGPRs are spilled")


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["no-such-file"], 4, snapshot("rocattn kernels: no-such-file does not exist")),
        (["."], 3, snapshot("rocattn kernels: no kernels to audit")),
        (["empty"], 3, snapshot("rocattn kernels: no kernels to audit")),
        (
            ["text", "--check-pins"],
            4,
            snapshot("rocattn kernels: pins are for the kernels that rocattn ships: leave out FILE"),
        ),
        (
            ["text", "--quick"],
            4,
            snapshot("rocattn kernels: --quick selects kernels that rocattn ships: leave it out with FILE"),
        ),
        (["--block", "64"], 4, snapshot("rocattn kernels: --block, --dynamic-lds and --options need a FILE")),
        (["--write-pins", "--quick"], 4, snapshot("rocattn kernels: pins cover all kernels: leave out --quick")),
        (
            ["text", "--against", "none.json"],
            4,
            snapshot(
                "rocattn kernels: none.json does not exist: give an audit.json or files; only sources can be read "
                "from a revision"
            ),
        ),
        (
            ["text", "--against", "text"],
            4,
            snapshot(
                "rocattn kernels: text is not an audit: give an audit.json written by `rocattn kernels audit --out` "
                "(JSON is malformed: invalid character (byte 4))"
            ),
        ),
        (
            ["--against", "text"],
            4,
            snapshot(
                "rocattn kernels: text is not an audit: give an audit.json written by `rocattn kernels audit --out` "
                "(JSON is malformed: invalid character (byte 4))"
            ),
        ),
        (
            ["text", "--against", "HEAD"],
            4,
            snapshot(
                "rocattn kernels: HEAD does not exist: give an audit.json or files; only sources can be read from a "
                "revision"
            ),
        ),
        (
            ["--arch", "gfx000"],
            4,
            snapshot(
                "rocattn kernels: there are no kernels for gfx000, only for gfx90a, gfx942, gfx950, gfx1030, "
                "gfx1100, gfx1201 and their siblings"
            ),
        ),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(audit, tmp_path, monkeypatch, arguments, status, said):
    """Each with what to do instead."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("nothing of interest\n")
    monkeypatch.setattr(shipped, "facts_of_all", None)  # nor is anything compiled first
    found, out, err = audit(*arguments)
    assert (found, out) == (status, "")
    assert screen(err.splitlines()[-1], tmp=tmp_path) == said
