"""The machine code of both sides: what is compiled, what fails and where, and what pins accept or remember."""

import shutil

import msgspec
import pytest
from own_gate import machine_code
from own_gate.machine_code import PINS, PinFiles, with_places

from rocattn.sources import kernel_root
from rocattn_profiling.gate.groups import by_cause
from rocattn_profiling.gate.machine_code import compare as code_objects
from rocattn_profiling.gate.machine_code.compare import Kernels, audit_entries, compare_audits, compare_kernels
from rocattn_profiling.gate.model import SIDES, Cause, Location
from rocattn_profiling.kernels.audit import Audit
from rocattn_profiling.kernels.pins import pin_of, pins_of, write_pins
from rocattn_profiling.kernels.shipped import shipped_facts, shipped_kernels
from rocattn_profiling.kernels.source_lines import SourceLine

from ...kernels.made_facts import audit, facts, loop

SOFTMAX = "softmax f32->f16 BLOCK=64"


@pytest.fixture(scope="module")
def shipped(kernel_cache):
    """A small kernel on one architecture and on another."""
    return [one for one in shipped_kernels(["gfx1100", "gfx90a"]) if one.name in {"scale", SOFTMAX}]


@pytest.fixture
def sides(tmp_path, shipped):
    """Both sides' kernels, from two folders."""
    return [Kernels(shutil.copytree(kernel_root(), tmp_path / side / "kernels"), shipped) for side in SIDES]


def plant(side, text):
    """Put code into the scale kernel, for gfx1100 alone."""
    path = side.root / "hip" / "scale.hip"
    source = path.read_text()
    at = source.rindex("ROCATTN_KERNEL(")
    at = source.index("{\n", at) + 2
    path.write_text(f"{source[:at]}#if defined(__gfx1100__)\n{text}\n#endif\n{source[at:]}")


SCRATCH = "    volatile float kept[32];\n    for (u32 i = 0; i < 32; ++i) kept[i] = static_cast<float>(block_x() + i);"


def test_only_what_can_differ_is_compiled(sides, monkeypatch):
    """Equal files and macros are equal code; a comment makes them be compiled, and nothing is found then."""
    real, asked = code_objects.facts_of_all, []

    def watched(kernels, *arguments, **options):
        asked.append(len(kernels))
        return real(kernels, *arguments, **options)

    monkeypatch.setattr(code_objects, "facts_of_all", watched)
    found = compare_kernels(*sides)
    assert (asked, sum(found.same.values()), found.comparison.findings) == ([], len(sides[0].shipped), [])
    path = sides[1].root / "hip" / "scale.hip"
    path.write_text(f"// planted\n{path.read_text()}")
    found = compare_kernels(*sides, jobs=1)
    assert asked == [2, 2]  # softmax is left out
    assert (found.same, found.comparison.findings) == ({"gfx1100": 1, "gfx90a": 1}, [])
    macro = [msgspec.structs.replace(one, defines={**one.defines, "UNUSED": 1}) for one in sides[0].shipped]
    assert compare_kernels(sides[0], sides[0]._replace(shipped=macro), jobs=1).same == {}


def entries_of(sides):
    """The audit's entries by (label, architecture), and what was compared."""
    compared = compare_kernels(*sides, jobs=1)
    known = {(one.arch, one.name): one for one in sides[1].shipped}
    pins = PinFiles(sides[0].root.parent, sides[1].root.parent)
    made = with_places(audit_entries(compared, pins), known, sides[1].root, lambda _: [])
    return {(one.label, one.arch): one for one in made}, compared


def test_scratch_memory_is_a_regression_with_its_line(sides):
    """Of the planted architecture only; numbers, unit, reason and a place for SARIF are there."""
    plant(sides[1], SCRATCH)
    found, _ = entries_of(sides)
    worse = {key: one for key, one in found.items() if one.status == "regression"}
    assert worse
    assert {arch for _, arch in worse} == {"gfx1100"}
    for entry in worse.values():
        assert (entry.metric, entry.base, entry.unit) == ("audit", 0, "bytes of scratch per lane")
        assert entry.head >= 128
        assert entry.decision is None  # out of nothing there is no ratio
        assert entry.causes[0].kind == "machine code"
        assert entry.causes[0].location.path == "kernels/hip/scale.hip"
        assert "scratch" in entry.reason
    assert {key[1]: one.status for key, one in found.items() if "gfx90a" in key} == {"gfx90a": "pass"}


def test_the_changed_line_is_the_cause_of_all_kernels(sides, monkeypatch):
    """However many there are, and without compiling them once more for the line of a count; spills keep their own."""
    monkeypatch.setattr(machine_code, "MOST", 1)
    monkeypatch.setattr(machine_code, "lines_of_shipped", lambda *_: [SourceLine("scale.hip:9", "9 of 9 cycles")])
    line = Cause(kind="source", text="x.h:3 changed", location=Location(path="x.h", line=3))
    shipped = {("gfx1100", f"k{n} f16 D=128"): sides[1].shipped[0] for n in range(3)}
    kernels = [{key: facts(kernel=key[1][:2], cost=loop(plain=count)) for key in shipped} for count in (300, 900)]
    compared = compare_audits(*(audit(*side.values()) for side in kernels))
    entries = with_places(audit_entries(compared), shipped, sides[1].root, lambda _: [line])
    worse = [entry for entry in entries if entry.status == "regression"]
    assert len(worse) == 3
    for entry in worse:
        assert [(cause.kind, cause.location) for cause in entry.causes] == [
            ("source", line.location), ("machine code", None),
        ]  # fmt: skip
    assert len(by_cause(worse)) == 1


def test_a_worsening_whose_pin_was_renewed_is_accepted(sides):
    """Only if the change renewed it: a pin that base has, too, accepts nothing."""
    plant(sides[1], SCRATCH)
    after = Audit(subject="head", rates=machine_code.rates_version(), kernels=[
        shipped_facts(one, sides[1].root) for one in sides[1].shipped
    ])  # fmt: skip
    write_pins(sides[1].root.parent / PINS, pins_of(after))
    found, _ = entries_of(sides)
    waived = [one for one in found.values() if one.status == "waived"]
    assert waived
    assert "gfx1100.json" in waived[0].waiver
    assert not [one for one in found.values() if one.status == "regression"]
    unmet = Audit(subject="base", rates=machine_code.rates_version(), kernels=[
        shipped_facts(one, sides[0].root) for one in sides[0].shipped
    ])  # fmt: skip
    renewed = pins_of(after)
    others = [
        pins_of(unmet),  # renewed, and not to what the kernel now is
        [msgspec.structs.replace(one, compiler="another") for one in renewed],
        [msgspec.structs.replace(one, rates="another") for one in renewed],
    ]
    for pins in others:
        write_pins(sides[1].root.parent / PINS, pins)
        assert not [one for one in entries_of(sides)[0].values() if one.status == "waived"]
    write_pins(sides[1].root.parent / PINS, renewed)
    write_pins(sides[0].root.parent / PINS, pins_of(after))
    found, _ = entries_of(sides)
    assert [one for one in found.values() if one.status == "regression"]


def test_an_improvement_asks_for_its_pin(sides):
    """With a pin that still has the old numbers; without pins it is an improvement and no more."""
    plant(sides[0], SCRATCH)
    before = Audit(subject="base", rates=machine_code.rates_version(), kernels=[
        shipped_facts(one, sides[0].root) for one in sides[0].shipped
    ])  # fmt: skip
    found, _ = entries_of(sides)
    better = next(one for one in found.values() if one.status == "improvement")
    assert "renew its pin" not in better.reason
    write_pins(sides[1].root.parent / PINS, pins_of(before))
    found, _ = entries_of(sides)
    better = next(one for one in found.values() if one.status == "improvement")
    assert "renew its pin" in better.reason


def test_creeping_regressions_are_compared_with_the_pin(sides):
    """A step of under 2 % is a note; with the steps before it, which only the pin remembers, it is a regression."""
    source = sides[1].root / "hip" / "softmax.hip"
    text = source.read_text()
    line = "    constexpr u32 CHUNKS = ITEMS / VECTOR;\n"
    assert text.count(line) == 1
    source.write_text(text.replace(line, f"{line}    __builtin_amdgcn_s_sleep(0);\n    __builtin_amdgcn_s_sleep(0);\n"))
    found, compared = entries_of(sides)
    key = "gfx1100", SOFTMAX
    before, after = (
        pin_of(of).loop.cycles["all"]
        for side in (compared.before, compared.after)
        for of in side.values()
        if (of.arch, of.name) == key
    )
    assert before < after < before * 1.02
    assert {one.status for one in found.values()} == {"pass"}
    audit = Audit(subject="long ago", rates=machine_code.rates_version(), kernels=list(compared.before.values()))
    pins = pins_of(audit)
    pin = next(one for one in pins if one.arch == key[0]).kernels[SOFTMAX]
    pin.loop.cycles["all"] = (before + after) / 2 / 1.02  # base is within 2 % of it, head is not
    for side in sides:
        write_pins(side.root.parent / PINS, pins)
    found, _ = entries_of(sides)
    assert [(one.label, one.arch) for one in found.values() if one.status == "regression"] == [key[::-1]]


def entry_of(tmp_path, before, after):
    """The entry of one kernel of gfx1100, of facts that no compiler made."""
    compared = compare_audits(audit(before), audit(after))
    (made,) = (one for one in audit_entries(compared) if one.label == "flash_attention f16 D=128")
    return made


def test_code_objects_of_any_project_are_compared():
    """A project without pins or sources for the compiler here has entries for its own audits, and no place in them."""
    other = facts(kernel="other")
    compared = compare_audits(audit(facts(), other), audit(facts(vgpr_spills=2), other))
    worse, rest = audit_entries(compared)
    assert (worse.status, worse.head, worse.unit, worse.causes[0].location) == (
        "regression",
        2,
        "spilled registers",
        None,
    )
    assert (rest.status, rest.label) == ("pass", "1 kernels")


@pytest.mark.parametrize(
    ("before", "after", "ratio", "numbers"),
    [
        ({"vgpr_spills": 20}, {"vgpr_spills": 22, "cost": loop(plain=900)}, 1956 / 1356, (1356, 1956, "cycles")),
        ({"vgpr_spills": 2}, {"vgpr_spills": 8, "cost": loop(plain=900)}, 4, (2, 8, "spilled registers")),
        ({}, {"vgpr_spills": 2, "cost": loop(plain=900)}, None, (0, 2, "spilled registers")),
        ({}, {"cost": loop(plain=900), "scratch": 64}, None, (0, 64, "bytes of scratch per lane")),
        ({}, {"sgpr_spills": 62}, None, (0, 62, "spilled registers")),
        ({}, {"lds": 38416}, 2, (6, 3, "waves per SIMD")),
        ({}, {"cost": loop(loads=((4, 32),))}, 4, (16, 4, "bytes per load")),
        ({}, {"choices": "WAVES=8", "cost": loop(plain=2334, flops=524288)}, 1.25, (1356, 3390, "cycles")),
        ({"vgpr_spills": 8, "cost": loop(plain=900)}, {"vgpr_spills": 4}, 0.5, (8, 4, "spilled registers")),
    ],
    ids=[
        "cycles",
        "spills",
        "new spills",
        "new scratch",
        "scalar spills",
        "waves",
        "loads",
        "twice the work",
        "better",
    ],
)
def test_the_ratio_of_a_kernel_is_that_of_what_grew_most(tmp_path, before, after, ratio, numbers):
    """A waiver's ceiling is for all that got worse; what began at nothing has no ratio, whatever stands beside it."""
    found = entry_of(tmp_path, facts(**before), facts(**after))
    assert (found.base, found.head, found.unit) == numbers
    assert (found.decision and found.decision.ratio) == (ratio and pytest.approx(ratio))


def test_pins_that_cannot_be_compared_are_noted_once(tmp_path):
    """A conflict, another compiler, another table of cycles: they accept nothing, and the verdict says why."""
    after = facts(vgpr_spills=12, scratch=64)
    rates = machine_code.rates_version()
    (path,) = write_pins(tmp_path / "head" / PINS, pins_of(audit(after, rates=rates)))
    good = path.read_text()
    pin = good[: good.rindex("  }\n}")].partition('"kernels": {')[2]
    for text, why in (
        (good, ""),
        (good.replace(after.compiler, "clang version 99"), "they come from clang version 99, but "),
        (good.replace(rates, "older"), "they were computed with a different instruction-cost table"),
        (
            good.replace('  "kernels"', '>>>>>>> theirs\n  "kernels"'),
            "benchmarks/pins/gfx1100.json contains unresolved",
        ),
        (good.replace(pin, f"{pin.rstrip()},{pin}"), "appears twice"),
    ):
        path.write_text(text)
        noted = []
        pins = PinFiles(tmp_path / "base", tmp_path / "head", noted.append)
        assert (pins.accepts(after), pins.accepts(after)) == ((True,) * 2 if not why else (False,) * 2)
        assert len(noted) == bool(why)
        assert all(line.startswith("the pins of gfx1100 cannot be used") and why in line for line in noted)
        assert str(tmp_path) not in "".join(noted)
    # What is wrong with base's, head has mended.
    write_pins(tmp_path / "base" / PINS, pins_of(audit(after, rates="older")))
    path.write_text(good)
    noted = []
    assert PinFiles(tmp_path / "base", tmp_path / "head", noted.append).accepts(after)
    assert noted == []
    # A pin without its hot loop would accept any.
    (only,) = pins_of(audit(after, rates=rates))
    name = "flash_attention f16 D=128"
    less = msgspec.structs.replace(only, kernels={name: msgspec.structs.replace(only.kernels[name], loop=None)})
    write_pins(tmp_path / "head" / PINS, [less])
    assert not PinFiles(tmp_path / "base", tmp_path / "head").accepts(after)


def test_a_compile_error_is_located(sides):
    """In the kernel's own file, or in the header that it includes: the page beside the change opens there."""
    plant(sides[1], "    not_declared();")
    line = 1 + (sides[1].root / "hip/scale.hip").read_text().split("not_declared")[0].count("\n")
    (cause,) = entries_of(sides)[0]["scale", "gfx1100"].causes
    assert (cause.location.path, cause.location.line) == ("kernels/hip/scale.hip", line)
    header = sides[1].root / "include/rocattn/device.h"
    header.write_text(f"#pragma once\nnot_a_type x;\n{header.read_text()}")
    (cause,) = entries_of(sides)[0]["scale", "gfx1100"].causes
    assert (cause.location.path, cause.location.line) == ("kernels/include/rocattn/device.h", 2)


def test_a_kernel_that_compiles_on_neither_side_is_listed(sides):
    """It is not one of those that passed, and why is said."""
    for side in sides:
        with (side.root / "hip" / "scale.hip").open("a") as source:
            source.write(f"#error planted for {side.root.parent.name}\n")
    found, _ = entries_of(sides)
    assert {arch: found["scale", arch].status for arch in ("gfx1100", "gfx90a")} == dict.fromkeys(
        ("gfx1100", "gfx90a"), "broken"
    )
    assert "does not compile on either side" in found["scale", "gfx1100"].reason
    assert "planted for head" in found["scale", "gfx1100"].reason
    assert "1 kernels" in {label for label, _ in found}
