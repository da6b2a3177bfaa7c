"""The formulas of every metric, as AMD's tools define them, written down a second time on purpose: numbers and units.

What the definitions are from: tables 2.1, 6.2, 12 and 17 of rocprof-compute, derived counters of rocprofiler-sdk.
"""

import pytest

from .test_evaluate import MI210, MI300X, RX_9060_XT, kernels, profile

MI100 = {"number": 0, "arch": "gfx908", "cus": 120, "simds": 480, "max_waves_per_cu": 40, "max_clock_mhz": 1502}
MI350X = MI300X | {"arch": "gfx950", "cus": 256, "simds": 1024, "max_clock_mhz": 2200}
RX_6900_XT = {"number": 0, "arch": "gfx1030", "cus": 80, "simds": 160, "max_waves_per_cu": 32, "xccs": 1}
RX_7900_XTX = RX_6900_XT | {"arch": "gfx1100", "cus": 96, "simds": 192}
FLOPS = {
    f"SQ_INSTS_VALU_{what}_{kind}": 1000 * at + 100 * row
    for at, what in enumerate(("ADD", "MUL", "TRANS", "FMA"), 1) for row, kind in enumerate(("F16", "F32", "F64"), 1)
}  # fmt: skip
MOPS = {f"SQ_INSTS_VALU_MFMA_MOPS_{kind}": 10**n for n, kind in enumerate(("F16", "BF16", "F32", "F64", "F8"))}


def reads(prefix, **counted):
    """Return counters of L2's fabric side."""
    return {f"{prefix}_{name}_sum": value for name, value in counted.items()}


CASES = [
    # Bytes: requests times their sizes.
    (MI210, reads("TCC_EA", WRREQ=100, WRREQ_64B=30), "written_bytes", 30 * 64 + 70 * 32),
    (MI300X, reads("TCC_EA0", WRREQ=100, WRREQ_64B=30), "written_bytes", 30 * 64 + 70 * 32),
    (MI300X, reads("TCC_EA0", RDREQ=100, RDREQ_32B=10) | {"TCC_BUBBLE_sum": 20}, "read_bytes", 2560 + 70 * 64 + 320),
    (MI300X, reads("TCC_EA0", RDREQ=100, RDREQ_32B=10) | {"TCC_BUBBLE_sum": 95}, "read_bytes", 95 * 128 + 320),
    (MI350X, reads("TCC_EA0", RDREQ_32B=1, RDREQ_64B=10, RDREQ_128B=100), "read_bytes", 32 + 640 + 12800),
    (RX_7900_XTX, {f"GL2C_EA_RDREQ_{size}B_sum": size for size in (32, 64, 96, 128)}, "read_bytes",
     32 * 32 + 64 * 64 + 96 * 96 + 128 * 128),
    (RX_6900_XT, {"GL2C_MC_WRREQ_sum": 100, "GL2C_EA_WRREQ_64B_sum": 30}, "written_bytes", 30 * 64 + 70 * 32),
    (RX_9060_XT, {"GL2C_EA_WRREQ_sum": 3}, "written_bytes", 768),
    (MI300X, {"FETCH_SIZE": 3}, "read_bytes", 3072),
    (MI350X, {"WRITE_SIZE": 3}, "written_bytes", 3072),
    (RX_7900_XTX, {"FETCH_SIZE": 3}, "read_bytes", 3072),
    (MI350X, {"FETCH_SIZE": 3}, "read_bytes", None),  # of gfx950 and gfx12 it is wrong in many releases
    (RX_9060_XT, {"FETCH_SIZE": 3}, "read_bytes", None),
    (MI210, reads("TCC_EA", WRREQ=100, WRREQ_64B=100), "write_gbps", 6.4),
    (MI210, reads("TCC_EA", RDREQ=0, RDREQ_32B=0, WRREQ=256, WRREQ_64B=256), "memory_pct", 100 * 16.384 / 1638.4),
    # Latencies and shares of requests.
    (MI210, reads("TCC_EA", RDREQ_DRAM=30, RDREQ=40), "dram_read_pct", 75),
    (MI300X, reads("TCC_EA0", RDREQ_DRAM=30, RDREQ=40), "dram_read_pct", 75),
    (MI210, reads("TCC_EA", WRREQ_DRAM=30, WRREQ=40), "dram_write_pct", 75),
    (MI300X, reads("TCC_EA0", WRREQ_DRAM=30, WRREQ=40), "dram_write_pct", 75),
    (MI210, reads("TCC_EA", RDREQ_LEVEL=8000, RDREQ=40), "read_latency_cycles", 200),
    (MI300X, reads("TCC_EA0", RDREQ_LEVEL=8000, RDREQ=40), "read_latency_cycles", 200),
    (MI210, reads("TCC_EA", WRREQ_LEVEL=8000, WRREQ=40), "write_latency_cycles", 200),
    (MI300X, reads("TCC_EA0", WRREQ_LEVEL=8000, WRREQ=40), "write_latency_cycles", 200),
    (MI210, reads("TCC_EA", ATOMIC_LEVEL=8000, ATOMIC=40), "atomic_latency_cycles", 200),
    (MI300X, reads("TCC_EA0", ATOMIC_LEVEL=8000, ATOMIC=40), "atomic_latency_cycles", 200),
    (MI300X, {"TCC_EA0_ATOMIC_LEVEL_sum": 8000, "SQ_WAVE_CYCLES": 4000}, "atomic_wait_pct", 50),
    (MI300X, {"TCC_ATOMIC_sum": 1024, "SQ_WAVES": 256}, "atomics_per_wave", 4),
    (MI300X, {"TCC_ATOMIC_sum": 30, "TCC_REQ_sum": 40}, "atomic_pct", 75),
    (MI300X, {"TCP_TCC_READ_REQ_sum": 10, "TCP_TCC_WRITE_REQ_sum": 5, "TCP_TCC_ATOMIC_WITH_RET_REQ_sum": 3,
              "TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum": 2}, "atomic_pct", 25),
    (MI300X, {"TCC_EA0_WRREQ_STALL_sum": 30, "TCC_BUSY_sum": 40}, "write_stall_pct", 75),
    (MI210, {"TCC_TOO_MANY_EA_WRREQS_STALL_sum": 30, "TCC_BUSY_sum": 40}, "write_stall_pct", 75),
    (RX_7900_XTX, {"WriteUnitStalled": 30}, "write_stall_pct", 30),
    (RX_7900_XTX | {"arch": "gfx1151"}, {"FETCH_SIZE": 3}, "read_bytes_least", 3072),
    (RX_7900_XTX | {"arch": "gfx1151"}, {"FETCH_SIZE": 3}, "read_bytes", None),
    # Coalescing, address and data units, address translation: 304 compute units of 8 dies, busy for 1000 cycles.
    (MI300X, {"TCP_TOTAL_CACHE_ACCESSES_sum": 128, "TA_TOTAL_WAVEFRONTS_sum": 2}, "l1_accesses_per_instruction", 64),
    (MI300X, {"TCP_TOTAL_ACCESSES_sum": 131072, "TA_TOTAL_WAVEFRONTS_sum": 2048}, "coalescing_pct", 25),
    (MI300X, {"FETCH_SIZE": 8, "TA_FLAT_READ_WAVEFRONTS_sum": 2, "TA_BUFFER_READ_WAVEFRONTS_sum": 0},
     "read_amplification", 4),
    (MI300X, {"FETCH_SIZE": 8, "SQ_INSTS_VMEM_RD": 4}, "read_amplification", 2),
    (MI300X, {"TA_TA_BUSY_sum": 152_000, "GRBM_GUI_ACTIVE": 8000}, "ta_busy_pct", 50),
    (MI300X, {"TA_BUSY_avr": 750, "GRBM_GUI_ACTIVE": 8000}, "ta_busy_pct", 75),
    (RX_7900_XTX, {"TA_BUSY_avr": 750, "GRBM_GUI_ACTIVE": 1000}, "ta_busy_pct", 75),
    (RX_7900_XTX, {"MemUnitBusy": 83}, "ta_busy_pct", 83),
    (MI300X, {"TA_TA_BUSY_sum": 152_000, "TA_ADDR_STALLED_BY_TC_CYCLES_sum": 60_800,
              "TA_DATA_STALLED_BY_TC_CYCLES_sum": 15_200, "GRBM_GUI_ACTIVE": 8000}, "ta_work_pct", 25),
    (MI300X, {"TA_TA_BUSY_sum": 304 * 1000, "TA_ADDR_STALLED_BY_TC_CYCLES_sum": 0,
              "TA_DATA_STALLED_BY_TC_CYCLES_sum": 0}, "ta_work_time_pct", 100 / 2.1),
    (MI300X, {"TA_ADDR_STALLED_BY_TC_CYCLES_sum": 152_000, "GRBM_GUI_ACTIVE": 8000}, "ta_stalled_pct", 50),
    (MI300X, {"MemUnitStalled": 12}, "mem_unit_stalled_pct", 12),
    (MI300X, {"TD_TD_BUSY_sum": 152_000, "GRBM_GUI_ACTIVE": 8000}, "td_busy_pct", 50),
    (MI300X, {"TD_TD_BUSY_sum": 152_000, "TD_TC_STALL_sum": 76_000, "GRBM_GUI_ACTIVE": 8000}, "td_work_pct", 25),
    (MI300X, {"TD_TD_BUSY_sum": 304 * 1000, "TD_TC_STALL_sum": 0}, "td_work_time_pct", 100 / 2.1),
    (MI300X, {"TCP_UTCL1_TRANSLATION_HIT_sum": 3, "TCP_UTCL1_REQUEST_sum": 4}, "utcl1_hit_pct", 75),
    (MI300X, {"TCP_UTCL1_TRANSLATION_MISS_sum": 1, "TCP_UTCL1_REQUEST_sum": 4}, "utcl1_miss_pct", 25),
    (MI300X, {"TCP_UTCL1_TRANSLATION_MISS_sum": 7}, "utcl1_misses", 7),
    (MI300X, {"SQ_LDS_BANK_CONFLICT": 304 * 1000}, "lds_conflict_least_pct", 100 / 2.1),
    (MI300X, {"SQ_LDS_BANK_CONFLICT": 300, "SQ_BUSY_CU_CYCLES": 400}, "lds_conflict_busy_pct", 75),
    # Caches.
    (RX_7900_XTX, {"GL2C_HIT_sum": 3, "GL2C_MISS_sum": 1}, "l2_hit_pct", 75),
    (MI100, {"TCC_REQ_sum": 1000}, "l2_gbps", 64),
    (MI300X, {"TCC_REQ_sum": 1000}, "l2_gbps", 128),
    (MI210, {"TCP_TOTAL_CACHE_ACCESSES_sum": 1000}, "l1_gbps", 64),
    (MI300X, {"TCP_TOTAL_CACHE_ACCESSES_sum": 1000}, "l1_gbps", 128),
    (MI300X, {"TCP_TCC_READ_REQ_sum": 10, "TCP_TCC_WRITE_REQ_sum": 5, "TCP_TCC_ATOMIC_WITH_RET_REQ_sum": 3,
              "TCP_TCC_ATOMIC_WITHOUT_RET_REQ_sum": 2, "TCP_TOTAL_CACHE_ACCESSES_sum": 100}, "l1_hit_pct", 80),
    (RX_9060_XT, {"TCP_REQ": 100, "TCP_REQ_MISS": 30}, "l1_hit_pct", 70),
    (MI300X, {"SQC_DCACHE_HITS": 30, "SQC_DCACHE_MISSES": 10}, "scalar_l1_hit_pct", 75),
    (RX_9060_XT, {"SQC_ICACHE_HITS": 30, "SQC_ICACHE_MISSES": 10}, "instruction_l1_hit_pct", 75),
    # LDS: of its cycles, of the GPU's, and of its accesses.
    (MI210, {"SQ_LDS_BANK_CONFLICT": 30, "SQ_LDS_IDX_ACTIVE": 40}, "lds_conflict_pct", 75),
    (RX_7900_XTX, {"SQC_LDS_BANK_CONFLICT": 30, "SQC_LDS_IDX_ACTIVE": 40}, "lds_conflict_pct", 75),
    (RX_7900_XTX, {"LDSBankConflict": 12}, "lds_conflict_pct", 12),
    (MI210, {"LDSBankConflict": 12}, "lds_conflict_pct", None),
    (MI210, {"LDSBankConflict": 12}, "lds_conflict_time_pct", 12),
    (MI300X, {"SQ_LDS_BANK_CONFLICT": 304 * 30, "GRBM_GUI_ACTIVE": 800}, "lds_conflict_time_pct", 30),
    (MI210, {"SQ_LDS_BANK_CONFLICT": 30, "SQ_LDS_IDX_ACTIVE": 40}, "lds_conflicts_per_access", 3),
    (RX_7900_XTX, {"SQC_LDS_BANK_CONFLICT": 30, "SQC_LDS_IDX_ACTIVE": 40}, "lds_conflicts_per_access", 3),
    (MI210, {"SQ_LDS_BANK_CONFLICT": 30, "SQ_LDS_IDX_ACTIVE": 1030}, "lds_gbps", 128),
    # Of what LDS could move in 1,000 ns, what instructions and the cycles that are left over can have been.
    (MI210, {"SQ_LDS_BANK_CONFLICT": 30, "SQ_LDS_IDX_ACTIVE": 1030, "SQ_INSTS_LDS": 1000}, "lds_moved_gbps", 128),
    (MI210, {"SQ_LDS_BANK_CONFLICT": 30, "SQ_LDS_IDX_ACTIVE": 1030, "SQ_INSTS_LDS": 100}, "lds_moved_gbps", 102.4),
    (MI210, {"SQ_LDS_BANK_CONFLICT": 30, "SQ_LDS_IDX_ACTIVE": 1030, "SQ_LDS_UNALIGNED_STALL": 500,
             "SQ_INSTS_LDS": 1000}, "lds_moved_gbps", 64),
    (MI210, {"SQ_LDS_UNALIGNED_STALL": 30, "SQ_LDS_IDX_ACTIVE": 40}, "lds_unaligned_pct", 75),
    (MI210, {"SQ_LDS_IDX_ACTIVE": 360, "SQ_INSTS_LDS": 10}, "lds_cycles_per_instruction", 36),
    (RX_7900_XTX, {"SQC_LDS_IDX_ACTIVE": 360, "SQ_INSTS_LDS": 10}, "lds_cycles_per_instruction", 36),
    (MI300X, {"SQ_LDS_IDX_ACTIVE": 304 * 30, "GRBM_GUI_ACTIVE": 800}, "lds_busy_pct", 30),
    (RX_9060_XT, {"SQC_LDS_IDX_ACTIVE": 16 * 30, "GRBM_GUI_ACTIVE": 100}, "lds_busy_pct", 30),
    (MI210, {"LdsUtil": 30}, "lds_busy_pct", 30),
    # Of what the caches and the fabric pass on in 1,000 ns at 2,100 (MI210: 1,700) MHz.
    (MI300X, {"TCP_TOTAL_CACHE_ACCESSES_sum": 304 * 210}, "l1_pct", 10),
    (MI210, {"TCP_TOTAL_CACHE_ACCESSES_sum": 104 * 170}, "l1_pct", 10),
    (MI300X | {"l2_channels": None}, {"TCC_REQ_sum": 128 * 210}, "l2_pct", 10),
    (MI300X | {"l2_channels": 64}, {"TCC_REQ_sum": 64 * 210}, "l2_pct", 10),
    (MI210, {"TCC_REQ_sum": 32 * 170}, "l2_pct", 10),
    (MI210 | {"l2_channels": 32}, reads("TCC_EA", RDREQ=32 * 340, RDREQ_32B=0, WRREQ=0, WRREQ_64B=0), "fabric_pct", 20),
    (MI300X, {"TA_FLAT_WAVEFRONTS_sum": 10, "TA_BUFFER_WAVEFRONTS_sum": 5}, "l1_asked_gbps", 15.36),
    (MI300X, {"TCP_TOTAL_CACHE_ACCESSES_sum": 240, "TA_FLAT_WAVEFRONTS_sum": 10, "TA_BUFFER_WAVEFRONTS_sum": 5},
     "l1_accesses_per_instruction", 16),
    # Units' cycles, of those that 1,000 ns have at 2,100 (MI210: 1,700) MHz.
    (MI300X, {"SQ_LDS_IDX_ACTIVE": 304 * 210}, "lds_time_pct", 10),
    (MI300X, {"SQ_ACTIVE_INST_VALU": 304 * 210}, "valu_time_pct", 10),
    (RX_6900_XT | {"max_clock_mhz": 2000}, {"SQ_INSTS_VALU": 160 * 200}, "valu_time_pct", 10),
    (MI300X, {"SQ_VALU_MFMA_BUSY_CYCLES": 1216 * 210}, "matrix_time_pct", 10),
    (MI300X, {"SQ_ACTIVE_INST_SCA": 304 * 210}, "salu_time_pct", 10),
    (MI300X, {"SQ_INSTS": 304 * 210}, "issue_time_pct", 2),
    (MI210, {f"SQ_INSTS_VALU_TRANS_{kind}": 416 * 17 for kind in ("F16", "F32", "F64")},
     "transcendental_time_pct", 48),
    (MI350X, {f"SQ_INSTS_VALU_TRANS_{kind}": 1024 * 22 for kind in ("F16", "F32", "F64")},
     "transcendental_time_pct", 32),
    # Units' cycles, of those of one XCD.
    (MI300X, {"SQ_ACTIVE_INST_VALU": 304 * 30, "GRBM_GUI_ACTIVE": 800}, "valu_busy_pct", 30),
    (RX_9060_XT, {"SQ_INST_CYCLES_VALU": 16 * 30, "GRBM_GUI_ACTIVE": 100}, "valu_busy_pct", 30),
    (MI300X, {"SQ_VALU_MFMA_BUSY_CYCLES": 1216 * 30, "GRBM_GUI_ACTIVE": 800}, "matrix_busy_pct", 30),
    (MI300X, {"SQ_ACTIVE_INST_SCA": 304 * 30, "GRBM_GUI_ACTIVE": 800}, "salu_busy_pct", 30),
    (MI300X, {"SQ_ACTIVE_INST_FLAT": 3040, "SQ_ACTIVE_INST_VMEM": 6080, "GRBM_GUI_ACTIVE": 800}, "vmem_busy_pct", 30),
    (MI300X, {"SQ_ACTIVE_INST_MISC": 304 * 30, "GRBM_GUI_ACTIVE": 800}, "branch_busy_pct", 30),
    (MI300X, {"GRBM_GUI_ACTIVE": 30, "GRBM_COUNT": 40}, "busy_pct", 75),
    (MI210, {"SQ_THREAD_CYCLES_VALU": 480, "SQ_ACTIVE_INST_VALU": 10}, "valu_active_lanes", 48),
    (MI210, {"SQ_INSTS": 30, "SQ_BUSY_CU_CYCLES": 40}, "ipc", 0.75),
    (RX_7900_XTX, {"SQ_INSTS_VALU": 2560, "SQ_WAVES": 256}, "valu_instructions", 10),
    (RX_7900_XTX, {"SQ_INSTS_LDS": 2560, "SQ_WAVES": 256}, "lds_instructions", 10),
    (RX_7900_XTX, {"SQ_WAIT_ANY": 30, "SQ_WAVE_CYCLES": 40}, "waiting_pct", 75),
    (RX_7900_XTX, {"SQ_WAIT_INST_ANY": 30, "SQ_WAVE_CYCLES": 40}, "issue_waiting_pct", 75),
    # Waves: CDNA counts their cycles in fours.
    (MI300X, {"SQ_WAVE_CYCLES": 5000, "GRBM_GUI_ACTIVE": 80}, "waves", 2000),
    (MI300X, {"SQ_WAVE_CYCLES": 4864, "GRBM_GUI_ACTIVE": 80}, "achieved_occupancy_pct", 20),
    (RX_7900_XTX, {"SQ_WAVE_CYCLES": 6144, "GRBM_GUI_ACTIVE": 10}, "achieved_occupancy_pct", 20),
    # A block of four waves on a compute unit: as many cycles of waves as of its SIMDs, and four waves.
    (MI210, {"SQ_WAVE_CYCLES": 80, "SQ_BUSY_CU_CYCLES": 80}, "waves_per_active_cu", 4),
    (MI210, {"SQ_WAVE_CYCLES": 80, "SQ_BUSY_CU_CYCLES": 10}, "waves_per_active_cu", 32),
    (RX_7900_XTX, {"MeanOccupancyPerCU": 8}, "achieved_occupancy_pct", 25),
    # FLOPs.
    (MI210, FLOPS, "vector_flops", 64 * (3600 + 6600 + 9600 + 2 * 12600)),
    (MI210, {"SQ_INSTS_VALU_INT32": 10, "SQ_INSTS_VALU_INT64": 20}, "valu_iops", 1.92),
    (MI210, MOPS, "matrix_flops", 512 * 1111),
    (MI300X, MOPS, "matrix_flops", 512 * 11111),
    (MI300X, {name: MOPS[name] for name in list(MOPS)[:4]}, "matrix_flops", 512 * 1111),
    (MI300X, {name: MOPS[name] for name in list(MOPS)[:2]}, "matrix_flops", 512 * 11),
    (MI210, MOPS | FLOPS, "flops", 512 * 1111 + 64 * 45000),
    (MI210, MOPS | FLOPS, "tflops", (512 * 1111 + 64 * 45000) / 1e6),
    (MI210, MOPS, "matrix_tflops", 512 * 1111 / 1e6),
    (MI210, MOPS | reads("TCC_EA", RDREQ=10, RDREQ_32B=0, WRREQ=20, WRREQ_64B=0), "arithmetic_intensity",
     512 * 1111 / 1280),
    # What kept waves from being launched: of a SIMD's time, and of a compute unit's, which is counted in fours.
    *[
        (MI300X, {f"SPI_RA_{name}_FULL_CSN": 304 * 5, "GRBM_GUI_ACTIVE": 800}, key, pct)
        for name, key, pct in (
            ("WAVE_SIMD", "wave_slots_full_pct", 5), ("VGPR_SIMD", "vgprs_full_pct", 5),
            ("SGPR_SIMD", "sgprs_full_pct", 5), ("LDS_CU", "lds_full_pct", 20), ("BAR_CU", "barriers_full_pct", 20),
        )
    ],
]  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "counted", "metric", "expected"),
    CASES,
    ids=[f"{metric}-{gpu['arch']}-{n}" for n, (gpu, _, metric, _) in enumerate(CASES)],
)
def test_a_metric_is_what_amd_s_tools_define(gpu, counted, metric, expected):
    """Of one launch of 256 waves in a microsecond."""
    values = kernels(profile([[("k", 1000, counted)]], gpu))["k"].values
    assert (values[metric].value if metric in values else None) == (
        expected if expected is None else pytest.approx(expected)
    )
