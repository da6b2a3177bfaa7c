"""Which kernel is which: of those of one name by what they were compiled for, of C++ templates by their arguments."""

import json

import pytest

from rocattn_profiling.kernels.audit import audit_files
from rocattn_profiling.kernels.pairs import pairs_of

from ..made_facts import audit, facts
from .test_other_files import kernel

TTIR = """\
module {{
  tt.func public @matmul(%a: !tt.ptr<f16> {{tt.divisibility = 16 : i32}} loc("a"(#loc)), %n: i32) attributes {{}} {{
    %acc = arith.constant dense<0.000000e+00> : tensor<{m}x{n}xf32> loc(#loc62)
    %g = arith.constant {group} : i32 loc(#loc5){more}
"""


def cached(folder, key, *, m=64, n=64, group=8, more="", **options):
    """Write what Triton's cache has of a kernel, and return its facts."""
    folder.mkdir(exist_ok=True)
    path = kernel(folder / key / "matmul.amdgcn")
    said = {"num_warps": 4, "num_stages": 2, "warp_size": 64, "shared": 0, "hash": key, "name": "matmul"} | options
    path.with_suffix(".json").write_text(json.dumps(said))
    path.with_suffix(".ttir").write_text(TTIR.format(m=m, n=n, group=group, more=more))
    return audit_files([path]).kernels[0]


def folders(pairs):
    """Return the folders of each pair."""
    return {tuple(each.file.split("/")[-2] for each in pair) for pair in pairs.both}


CONFIGS = ({"m": 128}, {"n": 128}, {"num_warps": 8}, {"num_stages": 1}, {"matrix_instr_nonkdim": 16}, {"group": 4})


@pytest.mark.parametrize(
    "edit",
    [
        {},
        {"more": "\n    %e = arith.constant 1.5 : f32"},
        {"more": "\n    %e: tensor<7xi32>"},
        {"kpack": 2},
        {"shared": 9},
    ],
)
def test_triton_kernels_are_paired_by_configuration(tmp_path, edit):
    """An edited line changes every key of the cache, and with it all paths."""
    olds = [cached(tmp_path / "a", f"h{at}", **config) for at, config in enumerate(CONFIGS)]
    news = [cached(tmp_path / "b", f"n{at}", **config, **edit) for at, config in reversed(list(enumerate(CONFIGS)))]
    pairs = pairs_of(audit(*olds), audit(*news))
    assert folders(pairs) == {(f"h{at}", f"n{at}") for at in range(len(CONFIGS))}
    assert [*pairs.new, *pairs.missing, *pairs.unclear] == []


def test_a_configuration_that_is_replaced_is_no_pair(tmp_path):
    """The tile that is gone is missing, the other one new; what both have is compared."""
    olds = [cached(tmp_path / "a", f"h{m}", m=m) for m in (64, 128)]
    news = [cached(tmp_path / "b", f"n{m}", m=m) for m in (64, 256)]
    pairs = pairs_of(audit(*olds), audit(*news))
    assert (folders(pairs), len(pairs.missing), len(pairs.new)) == ({("h64", "n64")}, 1, 1)


def test_equal_configurations_are_not_guessed(tmp_path):
    """One of them is left on a side, and nothing says which of two it was."""
    olds = [cached(tmp_path / "a", key, m=m) for key, m in (("h1", 64), ("h2", 64), ("h3", 128))]
    news = [cached(tmp_path / "b", key, m=m) for key, m in (("n1", 64), ("n3", 128))]
    pairs = pairs_of(audit(*olds), audit(*news))
    assert (folders(pairs), len(pairs.unclear)) == ({("h3", "n3")}, 2)
    assert [*pairs.new, *pairs.missing] == []


def test_a_configuration_is_paired_before_a_path(tmp_path):
    """Folders may be numbered anew."""
    olds = [cached(tmp_path / "a", key, num_warps=warps) for key, warps in (("0", 4), ("1", 8))]
    news = [cached(tmp_path / "b", key, num_warps=warps) for key, warps in (("0", 8), ("1", 4))]
    assert folders(pairs_of(audit(*olds), audit(*news))) == {("0", "1"), ("1", "0")}


def instances(*arguments, name="2ck11kernel_gemm"):
    """Return kernels of a template with mangled arguments."""
    kernels = [
        facts(kernel=f"_ZN{name}I{each}EEvPKT_S2_", variant="", symbol=f"_ZN{name}I{each}EEvPKT_S2_")
        for each in arguments
    ]
    return audit(*kernels)


@pytest.mark.parametrize(
    ("before", "now", "both", "unclear", "gone"),
    [
        (("fLi256ELi128E", "fLi128ELi256E"), ("fLi256ELi128ELb0E", "fLi128ELi256ELb0E"), ((0, 0), (1, 1)), 0, 0),
        (
            ("fLi256ELi128ELb0E", "fLi128ELi256ELb0E"),
            ("fLi128ELi256ELb1E", "fLi256ELi128ELb1E"),
            ((0, 1), (1, 0)),
            0,
            0,
        ),
        (("fLi256ELi1E", "fLi128ELi1E"), ("fLi2ELi256ELi1E", "fLi2ELi128ELi1E"), ((0, 0), (1, 1)), 0, 0),
        (("fLi256E",), ("fLi64ELb1E",), ((0, 0),), 0, 0),
        (("fLi256ELb0E", "fLi256ELb1E"), ("DhLi256E",), (), 2, 0),
        (("fLi256E", "fLi128E"), ("fLi256E", "fLi64E", "fLi32E"), ((0, 0),), 0, 1),
    ],
)
def test_templates_are_paired_by_what_did_not_change(before, now, both, unclear, gone):
    """An argument that is new, or another one in all of them, changes every symbol; what is left tells them apart."""
    olds, news = instances(*before), instances(*now)
    pairs = pairs_of(olds, news)
    assert {(olds.kernels.index(old), news.kernels.index(new)) for old, new in pairs.both} == set(both)
    assert (len(pairs.unclear), len(pairs.missing)) == (unclear, gone)


TILES = [(128, 256), (256, 128), (64, 64), (128, 128)]
# Shortened: of a product of CK, and of one of CK Tile, all of whose kernels are instances of one template.
CK = "_ZN2ck11kernel_gemmINS_4GridIDF16_fLi256ELi{0}ELi{1}ELi{2}EEELb1ELi{3}ELNS_10TailNumberE{4}EEEvNT_8ArgumentE"
CK_TILE = (
    "_ZN7ck_tile6kentryILi{3}ENS_4GemmINS_8sequenceIJLi{0}ELi{1}ELi{2}EEEELi{4}ENS_8EpilogueILi{0}ELi{1}EEEEJiEEEvDpT1_"
)


@pytest.mark.parametrize("symbol", [CK, CK_TILE])
@pytest.mark.parametrize(("depth", "blocks"), [(64, 1), (32, 2), (64, 2)])
def test_an_argument_that_changed_in_all_is_passed_over(symbol, depth, blocks):
    """The depth of all tiles, the blocks of a CU, or both: the other arguments tell them apart."""
    sides = [
        audit(*(
            facts(kernel=name, variant="", symbol=name)
            for m, n in TILES for tail in (0, 1) for name in [symbol.format(m, n, k, occupancy, tail)]
        ))
        for k, occupancy in ((32, 1), (depth, blocks))
    ]  # fmt: skip
    pairs = pairs_of(*sides)
    places = [(sides[0].kernels.index(old), sides[1].kernels.index(new)) for old, new in pairs.both]
    assert sorted(places) == [(at, at) for at in range(8)]


def test_other_templates_are_no_pairs():
    """A kernel that is gone and another one that has come have nothing in common."""
    assert not pairs_of(instances("fE"), instances("fE", name="2ck10kernel_cat")).both
