"""Pins: one readable file an architecture, a ratchet both ways."""

import json
from pathlib import Path

import msgspec
import pytest

from rocattn.errors import ToolchainError
from rocattn.gpu.arch import TESTED
from rocattn.toolchain import choose_compiler
from rocattn_profiling.kernels.audit import audit_shipped
from rocattn_profiling.kernels.compare import check_pins
from rocattn_profiling.kernels.pins import PinError, pins_of, read_pins, write_pins
from rocattn_profiling.kernels.shipped import shipped_kernels

from ..made_facts import audit, facts, loop

PINS = Path(__file__).parents[3] / "benchmarks" / "pins"


@pytest.fixture
def pinned(tmp_path):
    """Pins of two kernels, through their file."""
    made = audit(facts(), facts(variant="f16 D=64"))
    (path,) = write_pins(tmp_path, pins_of(made))
    return read_pins(path)


def severities(comparison):
    """Return (severity, metric, kernel) of each finding."""
    return [(one.severity, one.metric, one.kernel) for one in comparison.findings]


def test_what_was_pinned_is_read_back_and_unchanged(pinned):
    """Writing and reading loses nothing that is compared."""
    made = audit(facts(), facts(variant="f16 D=64"))
    assert [pinned] == pins_of(made)
    found = check_pins([pinned], made)
    assert (found.findings, found.compared, found.unchanged) == ([], 2, 2)


def test_the_file_is_readable_and_its_diff_small(tmp_path, pinned):
    """Kernels in natural order, a few short lines each, without zeros: a changed number is one changed line."""
    path = tmp_path / "gfx1100.json"
    before = path.read_text().splitlines()
    assert [line for line in before if "flash_attention" in line] == [
        '    "flash_attention f16 D=64": {', '    "flash_attention f16 D=128": {',
    ]  # fmt: skip
    assert max(map(len, before)) <= 140
    assert "spills" not in path.read_text()
    assert json.loads(path.read_text())["kernels"]["flash_attention f16 D=64"]["vgprs"] == 190
    write_pins(tmp_path, pins_of(audit(facts(vgprs=191), facts(variant="f16 D=64"))))
    after = path.read_text().splitlines()
    changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
    assert len(changed) == 1
    assert changed[0][1].strip().startswith('"vgprs": 191,')


def test_the_order_of_the_audit_does_not_matter(tmp_path):
    """The same kernels give the same bytes."""
    kernels = [facts(variant=f"f16 D={dim}") for dim in (64, 256, 128)]
    texts = {write_pins(tmp_path, pins_of(audit(*order)))[0].read_bytes() for order in (kernels, kernels[::-1])}
    assert len(texts) == 1


def test_a_worse_kernel_is_found_by_the_numbers_alone(pinned):
    """Pins say which unit's cycles grew; the kinds of instructions they do not know."""
    worse = audit(facts(vgpr_spills=3, scratch=12), facts(variant="f16 D=64", cost=loop(plain=500)))
    found = check_pins([pinned], worse)
    assert severities(found)[:2] == [
        ("worse", "issue cycles", "flash_attention f16 D=64"), ("worse", "spills", "flash_attention f16 D=128"),
    ]  # fmt: skip
    assert "(+14.7 %): vector +200" in found.findings[0].sentence


def test_slow_creep_is_caught_since_the_pin_stays(pinned):
    """1.5 % is a note; another 1.5 % is beyond the pin, whatever the commit before had."""
    total = loop().issue_cycles
    steps = [facts(cost=loop(plain=300 + round(total * share))) for share in (0.015, 0.03)]
    found = [check_pins([pinned], audit(step), partial=True) for step in steps]
    assert [one.of("worse") != [] for one in found] == [False, True]


def test_an_improvement_is_found_too(pinned):
    """The other way of the ratchet."""
    found = check_pins([pinned], audit(facts(lds=9000, vgprs=96), facts(variant="f16 D=64")))
    assert severities(found)[0] == ("better", "occupancy", "flash_attention f16 D=128")


def test_missing_and_new_kernels_but_not_of_a_quick_audit(pinned):
    """A quick audit has few of the kernels: then none is missing."""
    some = audit(facts(), facts(kernel="mask", variant=""))
    assert severities(check_pins([pinned], some)) == [
        ("missing", "kernel", "flash_attention f16 D=64"), ("new", "kernel", "mask"),
    ]  # fmt: skip
    assert severities(check_pins([pinned], some, partial=True)) == [("new", "kernel", "mask")]


def test_cycles_of_another_compiler_are_not_compared(pinned):
    """Neither worse nor better; waves are."""
    changed = audit(
        facts(vgprs=256, compiler="clang 23"), facts(variant="f16 D=64", cost=loop(plain=9), compiler="clang 23")
    )
    found = check_pins([pinned], changed)
    assert severities(found) == [("worse", "occupancy", "flash_attention f16 D=128")]
    assert [gap.code for gap in found.not_compared] == ["another_compiler"]


def test_another_table_of_cycles_is_not_comparable(pinned):
    """Registers still are."""
    changed = msgspec.structs.replace(audit(facts(cost=loop(plain=900)), facts(variant="f16 D=64")), rates="r2")
    assert severities(check_pins([pinned], changed)) == [("incomparable", "issue cycles", "flash_attention f16 D=128")]


def test_kernels_of_two_compilers_are_not_pinned():
    """One file has one compiler."""
    with pytest.raises(PinError, match="several compilers: a, b"):
        pins_of(audit(facts(compiler="a"), facts(variant="x", compiler="b")))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a pin file"),
        ('{"schema": 1}', "is not a pin file"),
        ('{"schema": 2, "arch": "gfx1100", "compiler": "", "rates": "", "kernels": {}}', "of version 2"),
        ('{"schema": 1, "arch": "gfx942", "compiler": "", "rates": "", "kernels": {}}', "pins of gfx942"),
        ('{"schema": 2, "arch": "gfx1100", "kernels": {}, "added later": 1}', "of version 2"),
        ("[" * 100_000, "is not a pin file"),
    ],
)
def test_a_file_that_holds_no_pins_is_refused_in_one_line(tmp_path, text, reason):
    """Each with what is wrong."""
    path = tmp_path / "gfx1100.json"
    path.write_text(text)
    with pytest.raises(PinError, match=reason) as caught:
        read_pins(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('    "flash_attention f16 D=128"', '<<<<<<< HEAD\n    "flash_attention f16 D=128"', "merge-conflict markers"),
        (
            '    "flash_attention f16 D=128"',
            '=======\n    "flash_attention f16 D=128"',
            "unresolved merge-conflict markers",
        ),
        ("D=64", "D=128", "'flash_attention f16 D=128' appears twice"),
        ('"sgprs": 60,', '"sgprs": 60, "sgprs": 60,', "'sgprs' appears twice"),
        ('"lost_wave_slots"', '"lost_wave_slot"', "unknown field `lost_wave_slot`"),
        ('"matrix_flops"', '"matrix_flop"', "unknown field `matrix_flop`"),
        ('"rates"', '"note": "", "rates"', "unknown field `note`"),
        ('"vgprs": 190', '"vgprs": -190', "Expected `int` >= 0"),
        ('"vgprs": 190', '"vgprs": 190.5', "Expected `int`"),
        ('"all"', '"al"', "the loop of flash_attention f16 D=64 has no total cycles"),
        ("{", "\ufeff{", "invalid character"),
    ],
)
def test_pins_edited_by_hand_are_not_read_as_less_than_they_say(tmp_path, pinned, old, new, reason):
    """Of two rows one would be without effect, and a name with a typo is a number that is never compared."""
    path = tmp_path / "gfx1100.json"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1), encoding="utf-8")
    with pytest.raises(PinError, match=reason) as caught:
        read_pins(path)
    assert "--write-pins" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"lost_wave_slots": None}, "lost wave slots"),
        ({"blocks": None}, "blocks"),
        ({"loop": None}, "hot loop"),
        ({"loop": {"bytes": 0}}, "hot loop's bytes"),
        ({"loop": None, "blocks": None}, "blocks, hot loop"),
        ({"loop": {"loads": {}}}, "hot loop's loads"),
        ({"loop": {"loads": {16: 0}}}, "hot loop's loads"),
        ({"block": 64}, "block of 128 threads"),
        ({"choices": "WAVES=8"}, "choices (WAVES=4)"),
    ],
)
def test_a_number_that_was_taken_out_of_a_pin_is_asked_for(pinned, changed, said):
    """Without it that quantity is not held to anything; a number that the kernel has not either is not asked for."""
    name = "flash_attention f16 D=64"
    pin = pinned.kernels[name]
    if isinstance(changed.get("loop"), dict):
        changed = {"loop": msgspec.structs.replace(pin.loop, **changed["loop"])}
    less = msgspec.structs.replace(pinned, kernels={**pinned.kernels, name: msgspec.structs.replace(pin, **changed)})
    found = check_pins([less], audit(facts(), facts(variant="f16 D=64")))
    assert severities(found) == [("new", "kernel", name)]
    assert found.findings[0].sentence.endswith(f"its pin lacks {said}")
    assert found.unchanged == 1
    without = facts(occupancy=None, loop=None, loop_bytes=None)
    assert check_pins(pins_of(audit(without)), audit(without)).findings == []


def test_missing_pins_say_how_to_make_them(tmp_path):
    """The first time there are none."""
    with pytest.raises(PinError, match=r"there are no pins for gfx1100 .*--write-pins"):
        read_pins(tmp_path / "gfx1100.json")


def test_every_shipped_kernel_is_pinned_and_nothing_else():
    """The files of this checkout name just the kernels that it ships, for every tested architecture."""
    assert {path.stem for path in PINS.glob("*.json")} == set(TESTED)
    pinned = {(arch, name) for arch in TESTED for name in read_pins(PINS / f"{arch}.json").kernels}
    assert pinned == {(one.arch, one.name) for one in shipped_kernels(TESTED)}


def test_shipped_kernels_are_named_by_problem_not_tile():
    """Each is another problem: no two variants of an architecture share a name."""
    kernels = shipped_kernels(TESTED)
    assert len({(one.arch, one.name) for one in kernels}) == len(kernels)
    (one,) = (one for one in kernels if one.arch == "gfx942" and one.name == "flash_attention_causal f16 D=128")
    assert "KEYS_PER_TILE=" in one.choices
    assert "KEYS_PER_TILE" not in one.variant


def test_the_pins_of_this_checkout_are_true(tmp_path, monkeypatch):
    """A few small kernels compiled here have just the pinned numbers, if the pinned compiler is here."""
    monkeypatch.setenv("ROCATTN_CACHE_DIR", str(tmp_path))
    pins = [read_pins(PINS / f"{arch}.json") for arch in ("gfx90a", "gfx1100")]
    try:
        compiler = choose_compiler().version
    except ToolchainError as error:
        pytest.skip(str(error))
    if {one.compiler for one in pins} != {compiler}:
        pytest.skip(f"the pins are those of {pins[0].compiler}, here is {compiler}")
    kernels = [one for one in shipped_kernels([pin.arch for pin in pins]) if one.name in {"scale", "qk_matmul f16"}]
    found = check_pins(pins, audit_shipped((), jobs=1, kernels=kernels), partial=True)
    assert (found.compared, found.findings) == (4, [])
