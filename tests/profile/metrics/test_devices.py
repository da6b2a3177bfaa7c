"""The GPU of a profile: what its files report first, then what the tables know, and nothing where that is open."""

import pandas as pd
import pytest

from rocattn_profiling.base.gpus import GpuFactsError
from rocattn_profiling.profile.ingest.table import Profile
from rocattn_profiling.profile.metrics.devices import GIVEN, UNKNOWN_AGENT, devices_of, given_peaks

from ..kit import agents
from .test_evaluate import MI210, MI300X, RX_9060_XT, kernels, profile


def devices(*rows, gpu=None):
    """Return the devices of agents."""
    return devices_of(Profile(agents=agents(*rows)), gpu)


def test_a_launch_without_gpu_takes_the_only_kind():
    """Eight MI300X are one kind; an MI210 beside them, or a partition of another size, leaves it open."""
    assert devices(MI300X, MI300X | {"number": 1})[UNKNOWN_AGENT].constants["cus"] == 304
    assert UNKNOWN_AGENT not in devices(MI300X, MI210 | {"number": 1})
    assert UNKNOWN_AGENT not in devices(MI300X, MI300X | {"number": 1, "cus": 38, "simds": 152, "xccs": 1})


def test_a_named_product_does_not_replace_what_files_report():
    """--gpu is for launches whose GPU no file describes."""
    found = devices(MI210, gpu="MI300X")
    assert (found[0].arch, found[UNKNOWN_AGENT].arch) == ("gfx90a", "gfx942")


def test_zeros_and_features_are_not_facts():
    """Drivers write 0 for what they do not know; rocminfo's gfx942:sramecc+ is gfx942."""
    (found, _) = devices(
        MI300X | {"arch": "gfx942:sramecc+:xnack-", "product": "MI300X_A1", "max_clock_mhz": 0}
    ).values()
    assert (found.arch, found.name) == ("gfx942", "Instinct MI300X")
    assert (found.constants["clock_mhz"], found.origin["clock_mhz"]) == (2100, "tables: Instinct MI300X")


def test_tables_complete_what_the_files_report():
    """An MI300X by its name and architecture alone, and one that reports another clock."""
    bare = {"number": 0, "arch": "gfx942", "product": "AMD Instinct MI300X"}
    found = devices(bare)[0].constants
    assert (found["cus"], found["xcds"], found["waves_per_cu"], found["simds_per_cu"]) == (304, 8, 32, 4)
    assert (found["peak_gbps"], found["lds_banks"]) == (pytest.approx(5324.8, rel=0.01), 32)
    assert found["peak_matrix_tflops"] == pytest.approx(2614.9, abs=0.1)  # FP8: the highest of floating types
    assert found["peak_vector_tflops"] == pytest.approx(163.4, abs=0.1)
    slow = devices(bare | {"cus": 304, "simds": 1216, "max_clock_mhz": 1900})[0]
    assert (slow.constants["clock_mhz"], slow.origin["clock_mhz"]) == (1900, "reported")
    assert slow.constants["simds_per_cu"] == 4


def test_memory_peak_from_its_clock_on_instinct_only():
    """32 bytes a channel and clock are HBM's: 1638.4 GB/s of an MI210; of another memory that says nothing."""
    assert devices(MI210)[0].constants["peak_gbps"] == pytest.approx(1638.4)
    apu = {"arch": "gfx1151", "cus": 40, "simds": 80, "xccs": 1, "max_clock_mhz": 2900}
    plain = devices(apu)[0].constants.get("peak_gbps")
    assert devices(apu | {"max_memory_clock_mhz": 1000, "memory_channels": 8})[0].constants.get("peak_gbps") == plain


def test_an_mi100_has_its_numbers_without_kernels_for_it():
    """CUs, dies and peaks from the tables, where the file does not say them."""
    found = devices({"arch": "gfx908", "cus": 120})[0]
    assert (found.name, found.constants["xcds"], found.constants["peak_gbps"]) == ("Instinct MI100", 1, 1228.8)
    assert found.origin["xcds"] == "tables: Instinct MI100"
    assert devices({"arch": "gfx908", "cus": 120, "xccs": 1})[0].origin["xcds"] == "reported"
    assert devices(gpu="MI100")[UNKNOWN_AGENT].constants["waves_per_cu"] == 40


def test_a_name_of_two_products_gives_what_they_have_in_common():
    """A driver calls a GCD of either chip MI250X/MI250: the same memory, not the same CUs."""
    found = devices(gpu="AMD Instinct MI250X/MI250")[UNKNOWN_AGENT]
    assert (found.arch, found.name) == ("gfx90a", "Instinct MI250X (one GCD) or Instinct MI250 (one GCD)")
    assert found.constants["peak_gbps"] == 1638.4
    assert "cus" not in found.constants


def test_a_named_product_settles_what_the_file_leaves_open():
    """A gfx1100 of 96 CUs is an RX 7900 XTX or a PRO W7900; a name that contradicts the file does nothing."""
    bare = {"arch": "gfx1100", "cus": 96, "simds": 192, "max_clock_mhz": 2482, "product": "AMD Radeon Graphics"}
    assert "peak_gbps" not in devices(bare)[0].constants
    assert devices(bare, gpu="W7900")[0].constants["peak_gbps"] == 864
    assert "peak_gbps" not in devices(bare, gpu="MI300X")[0].constants
    assert devices(bare | {"product": "Radeon RX 7900 XTX"}, gpu="W7900")[0].constants["peak_gbps"] == 960


def test_given_peaks_go_before_files_and_tables():
    """Of every GPU, with where they are from; the rates of a data type as well."""
    found = devices_of(Profile(agents=agents(MI300X)), None, given_peaks(["hbm=4.2TB/s", "fp16 = 1000 TFLOP/s"]))
    assert {each.constants["peak_gbps"] for each in found.values()} == {4200}
    assert found[0].origin["peak_gbps"] == GIVEN
    assert found[0].known.peak_tflops("fp16") == pytest.approx(1000)
    assert found[0].constants["peak_matrix_tflops"] == pytest.approx(2614.9, abs=0.1)  # FP8's, which is not given


@pytest.mark.parametrize(
    ("text", "peaks"),
    [
        ("memory=512GB/s", {"peak_gbps": 512}), ("DRAM=1.23 tb/s", {"peak_gbps": 1230}),
        ("hbm=3TiB/s", {"peak_gbps": 3 * 2**40 / 1e9}),
        ("matrix=1.3PFLOP/s", {"matrix": 1300}), ("vector=61.4TFLOPS", {"vector": 61.4}),
        ("hbm=4.2", None), ("hbm=4.2TFLOP/s", None), ("l2=4TB/s", None), ("fp16=1TB/s", None), ("hbm=0GB/s", None),
        ("", None), ("hbm", None),
    ],
)  # fmt: skip
def test_a_peak_has_a_name_and_a_unit(text, peaks):
    """Or is refused in one line that says how it is stated."""
    if peaks is not None:
        assert given_peaks([text]) == pytest.approx(peaks)
        return
    with pytest.raises(GpuFactsError, match=r"hbm=4\.2TB/s") as caught:
        given_peaks([text])
    assert "\n" not in str(caught.value)


def test_disabled_wgps_of_one_of_two_cards_are_told():
    """An RX 7900 XTX is whole, an XT beside it is not."""
    cards = [RX_9060_XT | {"arch": "gfx1100", "number": n, "cus": cus, "simds": 2 * cus}
             for n, cus in enumerate((96, 84))]  # fmt: skip
    counted = {"SQ_WAVE_CYCLES": 100, "GRBM_GUI_ACTIVE": 10}
    made = profile([[("k", 1000, counted), ("k", 1000, counted)]])
    made.agents = agents(*cards)
    made.dispatches["agent"] = pd.array([0, 1], dtype="Int32")
    assert any("disabled WGPs" in flag for flag in kernels(made)["k"].values["waves"].flags)
