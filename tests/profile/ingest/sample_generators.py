"""Samples of instructions as rocprofv3 writes them: PC samples (CSV, JSON, rocpd) and decoded thread traces.

The headers and names are those of ROCm/rocm-systems at 1b1610fc (August 2025, ROCm 7.0), projects/rocprofiler-sdk:
source/lib/output/generate{CSV,JSON}.cpp, source/lib/att-tool/code.cpp, source/include/rocprofiler-sdk/pc_sampling.h,
and include/rocprofiler-sdk/cxx/serialization/save.hpp; rocpd's are of schema 3.0.4 (using-pc-sampling.rst at 0d90e186).
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from . import generators as g

REASON = "ROCPROFILER_PC_SAMPLING_INSTRUCTION_NOT_ISSUED_REASON_"
TYPE = "ROCPROFILER_PC_SAMPLING_INSTRUCTION_TYPE_"
HOST_TRAP = ["Sample_Timestamp", "Exec_Mask", "Dispatch_Id", "Instruction", "Instruction_Comment", "Correlation_Id"]
STOCHASTIC = [*HOST_TRAP, "Wave_Issued_Instruction", "Instruction_Type", "Stall_Reason", "Wave_Count"]
TRACE = ["CodeObj", "Vaddr", "Instruction", "Hitcount", "Latency", "Stall", "Idle", "Source"]
EVERY_LANE = (1 << 64) - 1
NUMBERS = ("NONE", "NO_INSTRUCTION_AVAILABLE", "ALU_DEPENDENCY", "WAITCNT", "INTERNAL_INSTRUCTION", "BARRIER_WAIT")
LOAD_BASE = 0x7F0000000000


@dataclass(frozen=True)
class Sample:
    """Some equal samples; of an instruction of the code object 0, whose text is not known."""

    instruction: str
    source: str = ""
    reason: str = ""  # why nothing was issued; "" if it was
    count: int = 1
    dispatch: int = 1
    mask: int = EVERY_LANE
    code_object: int = 2
    offset: int = 0x1000


# Of the loop of a kernel, with a launch of the runtime's copy kernel: its instruction cannot be decoded.
LOOP = (
    Sample("s_waitcnt vmcnt(0)", "/home/me/attn.hip:118", "WAITCNT", 600, offset=0x1010),
    Sample("v_mfma_f32_32x32x8_f16 a[0:15], v[2:3], v[4:5], a[0:15]", "/home/me/attn.hip:118", "", 100, offset=0x1014),
    Sample("s_barrier", "/home/me/attn.hip:97", "BARRIER_WAIT", 150, offset=0x1020),
    Sample("v_exp_f32_e32 v1, v1", "/opt/rocm/include/hip/math.h:9 -> /home/me/attn.hip:131", "ALU_DEPENDENCY", 40,
           mask=0xFFFFFFFF, offset=0x1024),
    Sample("s_endpgm", "", "", 10, dispatch=3, offset=0x1100),
    Sample("", "", "WAITCNT", 100, dispatch=0, code_object=0, offset=0x7F1234),
)  # fmt: skip


def csv(path, samples=LOOP, *, stochastic=True):
    """Write a ``*_pc_sampling_stochastic.csv`` or ``*_pc_sampling_host_trap.csv``, a row for each sample."""
    rows = []
    for each in samples:
        undecoded = f"Unrecognized code object id, physical virtual address of PC:{each.offset}"
        row = [
            390705261841337, each.mask, each.dispatch, each.instruction, each.source if each.code_object else undecoded,
            each.dispatch,
        ]  # fmt: skip
        if stochastic:
            kind = f"{TYPE}{'NO_INST' if each.reason else 'VALU'}"
            row += [int(not each.reason), kind, f"{REASON}{each.reason or 'OTHER_WAIT'}", 4]
        rows += [row] * each.count
    return g.write_rows(path, STOCHASTIC if stochastic else HOST_TRAP, rows)


def v3_json(path, samples=LOOP, *, made=(), stochastic=True, kernels=(("attn", 0x1000),)):
    """Write a ``*_results.json``; ``kernels``: names with the offsets that they start at in code object 2."""
    texts = list(dict.fromkeys((each.instruction, each.source) for each in samples if each.code_object))
    records = []
    for each in samples:
        record = {
            "hw_id": {"chiplet": 0, "wave_id": 0}, "exec_mask": each.mask, "timestamp": 390705261841337,
            "pc": {"code_object_id": each.code_object, "code_object_offset": each.offset},
            "dispatch_id": each.dispatch, "corr_id": {"internal": each.dispatch, "external": 0},
            "wrkgrp_id": {"x": 9, "y": 489, "z": 0}, "wave_in_grp": 0,
        }  # fmt: skip
        if stochastic:
            record |= {
                "flags": {"has_mem_cnt": 0}, "wave_issued": int(not each.reason), "wave_cnt": 6,
                "inst_type": f"{TYPE}VALU", "snapshot": {"stall_reason": f"{REASON}{each.reason or 'OTHER_WAIT'}"},
            }  # fmt: skip
        index = texts.index((each.instruction, each.source)) if each.code_object else -1
        records += [{"record": record, "inst_index": index}] * each.count
    document = json.loads(g.v3_json(path, list(made) or g.launches(1)).read_text())
    (process,) = document["rocprofiler-sdk-tool"]
    if not made:  # without a kernel trace
        process["buffer_records"]["kernel_dispatch"] = []
        process["callback_records"]["counter_collection"] = []
    process["strings"] = {
        "pc_sample_instructions": [text for text, _ in texts], "pc_sample_comments": [source for _, source in texts],
    }  # fmt: skip
    process["code_objects"] = [{"code_object_id": 2, "load_base": LOAD_BASE, "load_size": 0x8000, "uri": "memory://1"}]
    process["kernel_symbols"] += [
        {
            "kernel_id": 100 + number, "code_object_id": 2, "formatted_kernel_name": name,
            "kernel_code_entry_byte_offset": 0x500, "kernel_address": {"handle": LOAD_BASE + offset},
        }
        for number, (name, offset) in enumerate(kernels)
    ]  # fmt: skip
    process["buffer_records"][f"pc_sample_{'stochastic' if stochastic else 'host_trap'}"] = records
    path.write_text(json.dumps(document))
    return path


def rocpd(path, made, samples=LOOP, *, texts=True):
    """Write a database with samples, and their instructions as ``--complete-isa-decode`` adds them."""
    g.rocpd(path, made)
    base = sqlite3.connect(path)
    ((guid, pid),) = base.execute("SELECT guid, id FROM rocpd_info_process")
    base.execute(
        "CREATE TABLE rocpd_gpu_pc_sample_u (id, guid, nid, pid, agent_id, dispatch_id, timestamp, exec_mask TEXT, "
        "code_object_id, code_object_offset, event_id, wave_issued, inst_type, stall_reason, wave_count)"
    )
    base.execute("CREATE VIEW rocpd_gpu_pc_sample AS SELECT * FROM rocpd_gpu_pc_sample_u")
    base.execute(
        "CREATE TABLE rocpd_disassembly_data_u (guid, code_object_id, code_object_offset, instruction, comment)"
    )
    base.execute("CREATE VIEW rocpd_disassembly_data AS SELECT * FROM rocpd_disassembly_data_u")
    for each in samples:
        reason = NUMBERS.index(each.reason) if each.reason else 8
        row = (
            1, guid, 1, pid, 2, each.dispatch, 7, f"{each.mask:#018x}", each.code_object, each.offset, 1,
            int(not each.reason), 1, reason, 6,
        )  # fmt: skip
        marks = ",".join("?" * len(row))
        base.executemany(f"INSERT INTO rocpd_gpu_pc_sample_u VALUES ({marks})", [row] * each.count)  # noqa: S608
        if each.code_object and texts:
            text = (guid, each.code_object, each.offset, each.instruction, each.source)
            base.execute("INSERT INTO rocpd_disassembly_data_u VALUES (?, ?, ?, ?, ?)", text)
    base.commit()
    base.close()
    return path


# Two kernels of a trace: a row of names, then (instruction, executions, latency, stall, idle, source).
TRACED = {
    ("_Z4attnPf", "attn(float*)"): [
        ("s_load_dwordx4 s[40:43], s[0:1], 0x18", 48, 276, 96, 48, "attn.py:391"),
        ("s_waitcnt lgkmcnt(0)", 48, 9600, 9408, 0, "attn.py:395"),
        ("global_store_dword v[0:1], v2, off", 48, 384, 96, 192, "attn.py:401"),
        ("s_endpgm", 0, 0, 0, 0, ""),
    ],
    ("fill", ""): [("v_mov_b32_e32 v1, 0", 16, 64, 0, 16, "")],
}


def _trace_rows():
    address = 5888
    for (mangled, demangled), instructions in TRACED.items():
        yield [11, address, f"; {mangled}", 0, 0, 0, 0, demangled]
        for text, hits, latency, stall, idle, source in instructions:
            yield [11, address, text, hits, latency, stall, idle, source]
            address += 8


def stats_csv(folder, number=3):
    """Write a ``stats_*.csv``."""
    return g.write_rows(folder / f"stats_ui_output_agent_1_dispatch_{number}.csv", TRACE, list(_trace_rows()))


def code_json(folder, number=3, header="ISA, _, LineNumber, Source, Codeobj, Vaddr, Hit, Latency, Stall, Idle"):
    """Write a ``ui_output_*/code.json``, its keys in nlohmann's order."""
    rows = [
        [text, 0, line, source, code, address, hits, latency, stall, idle]
        for line, (code, address, text, hits, latency, stall, idle, source) in enumerate(_trace_rows())
    ]
    path = folder / f"ui_output_agent_1_dispatch_{number}" / "code.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"code": rows, "header": header, "version": "3.0.0"}, separators=(",", ":")))
    return path
