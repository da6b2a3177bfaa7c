"""GPU facts: complete, sourced, stated once; peaks that AMD prints; and what a machine reports in their place."""

import tomllib
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

import pytest

from rocattn.gpu.arch import TESTED, wave_size
from rocattn.gpu.errors import ArchError
from rocattn_profiling.base.gpus import (
    Architecture,
    GpuFactsError,
    Product,
    architecture,
    architectures,
    known_names,
    named,
    product,
    products,
    reported_as,
    with_reported,
)

ROOT = Path(__file__).resolve().parents[2]
TABLES = tomllib.loads(files("rocattn_profiling.base").joinpath("gpus.toml").read_text())
ENTRIES = [(kind, name) for kind in ("arch", "product") for name in TABLES[kind]]


def entry(kind, name):
    """Return an architecture or a product."""
    return architecture(name) if kind == "arch" else product(name)


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_each_fact_has_a_source(kind, name):
    """Every field that holds a fact has a document or more that it is from; what is unverified is such a field."""
    found = entry(kind, name)
    facts = {field.name for field in fields(found)} - {"name", "sources", "unverified", "reported", "share"}
    if kind == "product" and found.bandwidth_gbps is None:
        facts -= {"bandwidth_gbps"}
    assert facts == set(found.sources)
    assert all(texts and set(texts) <= set(TABLES["sources"].values()) for texts in found.sources.values())
    assert set(found.unverified) <= facts


def test_no_source_is_without_a_fact():
    """A source that nothing is from is a leftover."""
    used = {text for kind, name in ENTRIES for texts in entry(kind, name).sources.values() for text in texts}
    used |= {named(name)[0].source for name in TABLES["other"]}
    assert used == set(TABLES["sources"].values())


@pytest.mark.parametrize(("kind", "name"), [each for each in ENTRIES if "like" in TABLES[each[0]][each[1]]])
def test_an_entry_says_only_what_it_does_not_inherit(kind, name):
    """No number stands twice: each one that an entry states differs from the one it would inherit."""
    table = TABLES[kind][name]
    parent = entry(kind, table["like"])
    for field, value in table.items():
        if field in {"like", "from", "unverified"}:
            continue
        inherited = getattr(parent, field)
        if isinstance(inherited, dict):
            inherited = {str(key): number for key, number in inherited.items()}
        assert value != inherited, f"{name} states {field} as {table['like']} does"


def test_there_are_facts_of_what_there_are_kernels_for():
    """Each target that tests compile for is there, and its kernels' wave size is its first."""
    assert set(TESTED) <= set(architectures())
    for name in architectures():
        assert architecture(name).wave_sizes[0] == wave_size(name)


def test_other_peoples_kernels_may_be_for_more():
    """The audit knows the registers and LDS of those, also of generic targets: no plan and no product is of them."""
    for name in set(TABLES["arch"]) - set(architectures()):
        with pytest.raises(ArchError):
            wave_size(name)
    chip = architecture("gfx1250")
    assert (chip.max_vgprs, chip.vgprs, chip.lds_bytes, chip.wave_sizes) == (1024, {32: 1024}, 320 << 10, (32,))
    assert (architecture("gfx908").waves_per_simd, architecture("gfx1010").waves_per_simd) == (10, 20)
    assert architecture("gfx11-generic").vgprs == architecture("gfx1102").vgprs


def test_register_files_hold_the_same_bits_for_both_wave_sizes():
    """A register of a wave of 64 takes as much of the file as two of a wave of 32; the file is that of AMD's table."""
    kib = {"gfx90a": 512, "gfx950": 512, "gfx1100": 768, "gfx1102": 512, "gfx1151": 768, "gfx1153": 512, "gfx1201": 768}
    for name in architectures():
        chip = architecture(name)
        sizes = {size * chip.vgprs[size] * 4 * chip.simds_per_cu * chip.cus_per_wgp // 1024 for size in chip.wave_sizes}
        assert sizes == {kib.get(name, next(iter(sizes)))}
        assert {size * chip.vgpr_granule[size] for size in chip.wave_sizes} == {64 * chip.vgpr_granule[64]}


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        # As AMD states them for the product, to the digits printed there.
        ("MI210", "fp16", 181.0), ("MI210", "fp64", 45.3), ("MI250X (one GCD)", "fp16", 383.0 / 2),
        ("MI300X", "fp16", 1307.4), ("MI300X", "fp8", 2614.9), ("MI300X", "vector-fp32", 163.4),
        ("MI300X", "tf32", 653.7), ("MI300X", "vector-fp64", 81.7), ("MI300A", "bf16", 980.6),
        ("MI355X", "fp16", 2516.6), ("MI355X", "fp64", 78.6), ("MI355X", "fp8", 5033.2), ("MI350X", "fp16", 2306.9),
        ("MI300A", "fp8", 1961.2), ("MI325X", "fp8", 2614.9), ("MI350X", "fp8", 4613.7), ("MI355X", "fp4", 10066.3),
        ("RX 7900 XTX", "vector-fp32", 61.4), ("RX 7900 XTX", "fp16", 122.9), ("RX 7900 XT", "vector-fp32", 51.6),
        ("RX 9070 XT", "vector-fp32", 48.7), ("RX 9070 XT", "fp16", 194.6), ("RX 9070 XT", "fp8", 389.3),
        ("RX 6900 XT", "vector-fp32", 23.0),
    ],
)  # fmt: skip
def test_peaks_are_those_that_are_published(name, dtype, tflops):
    """CUs, clock and rate multiply to the number on the data sheet."""
    assert product(name).peak_tflops(dtype) == pytest.approx(tflops, abs=0.06)


def test_a_peak_that_the_hardware_lacks_is_none():
    """RDNA 2 has no matrix instructions, RDNA 3 no FP8."""
    assert product("RX 6900 XT").peak_tflops("fp16") is None
    assert product("RX 7900 XTX").peak_tflops("fp8") is None


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["AMD Instinct MI300X", "instinct mi300x", "MI300X", "MI300X_A1", "MI300X OAM"], "Instinct MI300X"),
        (["MI250X", "Instinct MI250X", "AMD Instinct MI250X", "mi250x (one GCD)"], "Instinct MI250X (one GCD)"),
        (["RX7900XTX", "7900 xtx", "AMD Radeon RX 7900 XTX"], "Radeon RX 7900 XTX"),
        (["W7800 48GB", "AMD Radeon Pro W7800 48 GB"], "Radeon PRO W7800 48GB"),
        (["W7800", "W7800 32GB"], "Radeon PRO W7800"),
        (["W7900", "Radeon Pro W7900 Dual Slot"], "Radeon PRO W7900"),
        (["R9700", "AMD Radeon AI PRO R9700"], "Radeon AI PRO R9700"),
        (["9060 XT", "RX 9060 XT 16GB"], "Radeon RX 9060 XT"),
        (["Strix Halo", "Ryzen AI Max+ 395", "Radeon 8060S Graphics"], "Radeon 8060S"),
    ],
)
def test_products_are_found_by_any_common_name(names, found):
    """With and without the brand and what tools add, in any case."""
    assert {product(name).name for name in names} == {found}


def test_a_name_of_several_products_says_which():
    """As drivers call a GCD of either chip, and a GPU that there are no kernels for."""
    assert [each.name for each in named("AMD Instinct MI250X/MI250")] == [
        "Instinct MI250X (one GCD)", "Instinct MI250 (one GCD)",
    ]  # fmt: skip
    with pytest.raises(GpuFactsError, match=r"several products, name one: Instinct MI250X \(one GCD\), Instinct MI250"):
        product("MI250X/MI250")
    assert [each.bandwidth_gbps for each in named("MI100")] == [1228.8]
    with pytest.raises(GpuFactsError, match="no kernels for the Instinct MI100"):
        product("gfx908")


def test_names_and_ids_stand_for_products_that_are_there():
    """Aliases and PCI ids refer to entries of the tables."""
    for names in [*TABLES["aliases"].values(), *TABLES["device_ids"].values()]:
        assert set(names) <= set(known_names())
    assert reported_as("", "gfx908", 0x738C, None)[0].name == "Instinct MI100"


@pytest.mark.parametrize("name", ["gfx1151", "GFX1151", "gfx1151:xnack-"])
def test_a_target_of_one_product_is_a_name_of_it(name):
    """Tools print targets; where there is one product of it there is no question which."""
    assert product(name).name == "Radeon 8060S"


def test_an_ambiguous_target_is_refused_with_its_products():
    """One line, with the names of that target's products alone."""
    with pytest.raises(GpuFactsError) as caught:
        product("gfx942")
    assert str(caught.value) == (
        "'gfx942' is the target of several products, name one: Instinct MI300A, Instinct MI300X, Instinct MI308X, "
        "Instinct MI325X"
    )
    with pytest.raises(GpuFactsError, match="no facts are known about a GPU 'gfx1034'"):
        product("gfx1034")


def test_unknown_names_are_refused_with_those_that_are_known():
    """One line, with what there is."""
    with pytest.raises(GpuFactsError, match="Radeon RX 9070 XT"):
        product("RTX 4090")
    with pytest.raises(ArchError, match="gfx1201"):
        architecture("gfx1310")
    assert architecture("gfx942:sramecc+:xnack-").name == "gfx942"
    assert all(isinstance(product(name), Product) for name in products())
    assert all(isinstance(architecture(name), Architecture) for name in architectures())


# Columns of rocprofv3's agent_info.csv as real machines write them.
MI355X = {
    "Name": "gfx950", "Product_Name": "unknown", "Cu_Count": "256", "Simd_Per_Cu": "4", "Max_Waves_Per_Simd": "8",
    "Lds_Size_In_Kb": "160", "Num_Xcc": "8", "Max_Engine_Clk_Fcompute": "2400", "Wave_Front_Size": "64",
}  # fmt: skip
RX9070XT = {
    "Name": "gfx1201", "Product_Name": "AMD Radeon RX 9070 XT", "Cu_Count": "64", "Simd_Per_Cu": "2",
    "Max_Waves_Per_Simd": "16", "Lds_Size_In_Kb": "64", "Num_Xcc": "1", "Max_Engine_Clk_Fcompute": "2460",
}  # fmt: skip


@pytest.mark.parametrize("row", [MI355X, RX9070XT])
def test_real_machines_agree_with_the_tables(row):
    """SIMDs, wave slots and LDS of two agents are those of the tables."""
    assert with_reported(row).arch == architecture(row["Name"])


def test_what_a_machine_reports_goes_before_the_tables():
    """The driver's clock takes the place of the data sheet's; the rest of the product stays."""
    found = with_reported(MI355X | {"Max_Engine_Clk_Fcompute": "2000"}, product("MI355X"))
    assert (found.name, found.clock_mhz, found.bandwidth_gbps) == ("Instinct MI355X", 2000, 8000)
    assert "clock_mhz" in found.reported
    assert "bandwidth_gbps" not in found.reported
    assert found.peak_tflops("fp16") == pytest.approx(2516.58 * 2000 / 2400, rel=1e-4)


@pytest.mark.parametrize(("reported", "clock"), [("2460", 2970), ("3100", 3100)])
def test_a_game_clock_does_not_limit_a_card_that_boosts(reported, clock):
    """RDNA 4's driver reports 2460 MHz of a card that AMD sells with 2970; one that is overclocked says so."""
    found = with_reported(RX9070XT | {"Max_Engine_Clk_Fcompute": reported})
    assert (found.name, found.clock_mhz) == ("Radeon RX 9070 XT", clock)
    assert ("clock_mhz" in found.reported) == (clock == int(reported))


def test_a_partition_has_its_share_of_the_memory():
    """An MI300X in CPX mode shows 38 CUs of one XCD; a bin of its own (37 CUs) claims no bandwidth."""
    cpx = {"name": "AMD Instinct MI300X", "gcnArchName": "gfx942:sramecc+:xnack-",
           "multiProcessorCount": 38, "clockRate": 2100000, "num_xcc": 1}  # fmt: skip
    found = with_reported(cpx)
    assert (found.name, found.cus, found.xcds) == ("Instinct MI300X (1 of 8 partitions)", 38, 1)
    assert (found.bandwidth_gbps, found.share) == (pytest.approx(5324.8 / 8), 1 / 8)
    odd = with_reported(cpx | {"multiProcessorCount": 37})
    assert (odd.name, odd.cus, odd.bandwidth_gbps) == ("Instinct MI300X", 37, None)


@pytest.mark.parametrize(
    ("name", "cus", "gbps"),
    [("MI300X CPX", 38, 665.6), ("mi300x dpx", 152, 2662.4), ("MI325X QPX", 76, 1500), ("MI300A TPX", 76, 1774.9),
     ("MI300X spx", 304, 5324.8)],
)  # fmt: skip
def test_a_partition_is_a_name(name, cus, gbps):
    """As AMD's tools call the modes."""
    assert (product(name).cus, product(name).bandwidth_gbps) == (cus, pytest.approx(gbps, abs=0.1))


def test_a_mode_that_the_dies_do_not_allow_is_refused():
    """Six XCDs are not four equal parts, and an MI210 is one die."""
    for name in ("MI300A QPX", "MI210 CPX"):
        with pytest.raises(GpuFactsError, match="cannot be split"):
            product(name)


def test_wgps_are_counted_as_cus_and_hexadecimals_read():
    """48 multiprocessors of an RX 7900 XTX are 96 CUs; "32(0x20)" is 32."""
    hip = {"name": "AMD Radeon RX 7900 XTX", "gcnArchName": "gfx1100", "multiProcessorCount": 48, "clockRate": 2482000}
    assert (with_reported(hip).cus, with_reported(hip).clock_mhz) == (96, 2500)
    rocminfo = {
        "Name": "gfx1100", "Marketing Name": "AMD Radeon RX 7900 XTX", "Compute Unit": "96(0x60)",
        "Max Clock Freq. (MHz)": "2482(0x9b2)", "SIMDs per CU": "2", "Max Waves Per CU": "32(0x20)",
    }  # fmt: skip
    assert with_reported(rocminfo).arch == architecture("gfx1100")
    assert with_reported(rocminfo).cus == 96


def test_a_nameless_gpu_is_found_by_its_target_and_cus():
    """A gfx950 of 256 CUs is one of two with the same memory; a gfx1100 of 96 is one of two with another."""
    found = with_reported(MI355X)
    assert (found.name, found.cus, found.bandwidth_gbps) == ("Instinct MI350X or Instinct MI355X", 256, 8000)
    known = with_reported(MI355X, product("MI355X"))
    assert (known.name, known.bandwidth_gbps, known.clock_mhz) == ("Instinct MI355X", 8000, 2400)
    open_ = with_reported({"Name": "gfx1100", "Cu_Count": "96", "Max_Engine_Clk_Fcompute": "2482"})
    assert (open_.name, open_.bandwidth_gbps) == ("gfx1100", None)
    new = with_reported(MI355X | {"Product_Name": "AMD Instinct MI399X"})
    assert (new.name, new.cus, new.bandwidth_gbps) == ("gfx950", 256, None)


@pytest.mark.parametrize(
    ("report", "name"),
    [
        ({"Name": "gfx942", "Product_Name": "AMD Radeon Graphics", "Cu_Count": "80"}, "Instinct MI308X"),
        ({"Name": "gfx90a", "Product_Name": "AMD Instinct MI250X/MI250", "Cu_Count": "110"},
         "Instinct MI250X (one GCD)"),
        ({"Name": "gfx90a", "Product_Name": "AMD Instinct MI250X / MI250", "Cu_Count": "104"},
         "Instinct MI250 (one GCD)"),
        ({"Name": "gfx1030", "Product_Name": "", "Device_Id": "29631", "Cu_Count": "60"}, "Radeon RX 6800"),
        ({"Name": "gfx942", "Chip ID": "29861(0x74a5)", "Compute Unit": "304"}, "Instinct MI325X"),
        ({"Name": "gfx1151", "Product_Name": "Radeon 8050S Graphics", "Cu_Count": "32"}, "Radeon 8050S"),
        ({"Name": "gfx942", "Product_Name": "AMD Instinct MI300X VF", "Cu_Count": "304"}, "Instinct MI300X"),
    ],
)  # fmt: skip
def test_a_product_is_found_by_name_id_or_size(report, name):
    """Drivers write the name of two chips, of none, or of a virtual function."""
    assert with_reported(report).name == name


@pytest.mark.parametrize(
    ("row", "known", "reason"),
    [
        ({"Cu_Count": "64"}, None, "names no architecture"),
        ({"Name": "gfx1100"}, None, "lacks cus and clock_mhz"),
        ({"Name": "gfx1100"}, "RX 9070 XT", "but Radeon RX 9070 XT is a gfx1201"),
        (RX9070XT | {"Cu_Count": "many"}, None, "cucount is 'many'"),
        (RX9070XT | {"Cu_Count": "0"}, None, "above 0"),
    ],
)
def test_a_report_that_cannot_be_used_is_refused(row, known, reason):
    """With what is wrong with it."""
    with pytest.raises(GpuFactsError, match=reason):
        with_reported(row, product(known) if known else None)


@pytest.mark.parametrize(
    ("name", "ridge"), [("MI210", 110), ("MI300X", 246), ("MI355X", 315), ("RX 7900 XT", 129), ("RX 9070 XT", 304)]
)
def test_the_ridges_of_the_documents(name, ridge):
    """docs/research.md has these FLOPs a byte of fp16."""
    gpu = product(name)
    assert round(1000 * gpu.peak_tflops("fp16") / gpu.bandwidth_gbps) == ridge
    assert f"{ridge} " in (ROOT / "docs/research.md").read_text()
