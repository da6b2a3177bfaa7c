"""The GPU of a profile: what its files report first, then what the tables know, and nothing where that is open."""

import pandas as pd
import pytest

from rocattn_profiling.profile.ingest.table import AGENT_DTYPES, Profile
from rocattn_profiling.profile.metrics.devices import UNKNOWN_AGENT, devices_of

from .test_evaluate import MI210, MI300X, RX_9060_XT, kernels, profile


def devices(*agents, gpu=None):
    """Return the devices of agents."""
    table = pd.DataFrame(list(agents)).reindex(columns=list(AGENT_DTYPES)).astype(AGENT_DTYPES)
    return devices_of(Profile(agents=table), gpu)


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


def test_an_mi100_that_reports_its_dies_is_believed():
    """Only where no file says so it is one die."""
    assert devices({"arch": "gfx908", "cus": 120})[0].origin["xcds"] == "an MI100 is one die"
    assert devices({"arch": "gfx908", "cus": 120, "xccs": 1})[0].origin["xcds"] == "reported"


def test_disabled_wgps_of_one_of_two_cards_are_told():
    """An RX 7900 XTX is whole, an XT beside it is not."""
    cards = [RX_9060_XT | {"arch": "gfx1100", "number": n, "cus": cus, "simds": 2 * cus}
             for n, cus in enumerate((96, 84))]  # fmt: skip
    counted = {"SQ_WAVE_CYCLES": 100, "GRBM_GUI_ACTIVE": 10}
    made = profile([[("k", 1000, counted), ("k", 1000, counted)]])
    made.agents = pd.DataFrame(cards).reindex(columns=list(AGENT_DTYPES)).astype(AGENT_DTYPES)
    made.dispatches["agent"] = pd.array([0, 1], dtype="Int32")
    assert any("disabled WGPs" in flag for flag in kernels(made)["k"].values["waves"].flags)
