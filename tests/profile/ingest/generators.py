"""One description of what was launched, and small outputs of rocprofv3 made of it, of every generation."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field, replace

GUID = "00003fd6-c565-7565-938c-1314a3ac3a92"


@dataclass(frozen=True)
class Launch:
    """One dispatch and its counters."""

    dispatch: int
    kernel: str
    grid: tuple[int, int, int] = (1024, 3, 1)
    block: tuple[int, int, int] = (64, 2, 1)
    process: int = 4711
    lds: int = 512
    scratch: int = 16
    vgprs: int = 24
    agprs: int = 4
    sgprs: int = 112
    start: int = 1_550_151_853_029_637
    ns: int = 7_040
    queue: int = 3
    agent: int = 2
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def end(self):
        """The end timestamp."""
        return self.start + self.ns

    def work_items(self):
        """Return grid and block in work-items."""
        return self.grid[0] * self.grid[1] * self.grid[2], self.block[0] * self.block[1] * self.block[2]


def launches(count=3, counters=("SQ_WAVES", "GRBM_GUI_ACTIVE", "TCC_HIT_sum"), **changes):
    """Return launches of two kernels, with values that differ everywhere."""
    names = ("void fwd<float, 4u>(float*, std::array<char*, 2ul>)", "__amd_rocclr_copyBuffer")
    return [
        Launch(
            dispatch=i + 1,
            kernel=names[i % 2],
            grid=(256 * (i + 1), 3, 1),
            start=1_550_151_853_029_637 + 20_000 * i,
            ns=7_040 + i,
            counters={name: float(1000 * (i + 1) + k) for k, name in enumerate(counters)},
            **changes,
        )
        for i in range(count)
    ]


def quoted(value):
    """Return a value as rocprofv3 writes it: text in quotes, inner quotes not escaped, numbers by their size."""
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        return f"{value:.6f}" if abs(value) >= 1 else f"{value:.8e}"
    return str(value)


def write_rows(path, header, rows):
    """Write a CSV file as rocprofv3 does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(map(quoted, row)) for row in [header, *rows]]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


COUNTERS_V3 = {  # columns of counter_collection.csv
    "6.2.0": "Correlation_Id Dispatch_Id Agent_Id Queue_Id Process_Id Thread_Id Grid_Size Kernel_Name Workgroup_Size "
    "LDS_Block_Size Scratch_Size VGPR_Count SGPR_Count Counter_Name Counter_Value",
    "6.2.4": "Correlation_Id Dispatch_Id Agent_Id Queue_Id Process_Id Thread_Id Grid_Size Kernel_Id Kernel_Name "
    "Workgroup_Size LDS_Block_Size Scratch_Size VGPR_Count SGPR_Count Counter_Name Counter_Value",
    "6.3": "Correlation_Id Dispatch_Id Agent_Id Queue_Id Process_Id Thread_Id Grid_Size Kernel_Id Kernel_Name "
    "Workgroup_Size LDS_Block_Size Scratch_Size VGPR_Count SGPR_Count Counter_Name Counter_Value Start_Timestamp "
    "End_Timestamp",
    "7.0": "Correlation_Id Dispatch_Id Agent_Id Queue_Id Process_Id Thread_Id Grid_Size Kernel_Id Kernel_Name "
    "Workgroup_Size LDS_Block_Size Scratch_Size VGPR_Count Accum_VGPR_Count SGPR_Count Counter_Name Counter_Value "
    "Start_Timestamp End_Timestamp",
    "convert": "Guid Correlation_Id Dispatch_Id Agent_Id Queue_Id Process_Id Thread_Id Grid_Size Kernel_Id Kernel_Name "
    "Workgroup_Size Lds_Block_Size Scratch_Size Vgpr_Count Accum_Vgpr_Count Sgpr_Count Counter_Name Counter_Value "
    "Start_Timestamp End_Timestamp",
}
COUNTERS_V3["6.4"] = COUNTERS_V3["7.0"]
TRACE_V3 = {  # columns of kernel_trace.csv
    "6.2.0": "Kind Agent_Id Queue_Id Kernel_Id Kernel_Name Correlation_Id Start_Timestamp End_Timestamp "
    "Private_Segment_Size Group_Segment_Size Workgroup_Size_X Workgroup_Size_Y Workgroup_Size_Z Grid_Size_X "
    "Grid_Size_Y Grid_Size_Z",
    "6.4": "Kind Agent_Id Queue_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name Correlation_Id Start_Timestamp "
    "End_Timestamp Private_Segment_Size Group_Segment_Size Workgroup_Size_X Workgroup_Size_Y Workgroup_Size_Z "
    "Grid_Size_X Grid_Size_Y Grid_Size_Z",
    "7.0": "Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name Correlation_Id "
    "Start_Timestamp End_Timestamp LDS_Block_Size Scratch_Size VGPR_Count Accum_VGPR_Count SGPR_Count "
    "Workgroup_Size_X Workgroup_Size_Y Workgroup_Size_Z Grid_Size_X Grid_Size_Y Grid_Size_Z",
    "convert": "Guid Kind Agent_Id Queue_Id Stream_Id Thread_Id Dispatch_Id Kernel_Id Kernel_Name Correlation_Id "
    "Start_Timestamp End_Timestamp Duration Lds_Block_Size Scratch_Size Vgpr_Count Accum_Vgpr_Count Sgpr_Count "
    "Workgroup_Size_X Workgroup_Size_Y Workgroup_Size_Z Grid_Size_X Grid_Size_Y Grid_Size_Z",
}


def _values(launch, *, names_agent):
    grid, block = launch.work_items()
    values = {
        "guid": GUID, "kind": "KERNEL_DISPATCH", "correlation_id": launch.dispatch, "dispatch_id": launch.dispatch,
        "agent_id": f"Agent {launch.agent}" if names_agent else launch.agent, "queue_id": launch.queue,
        "stream_id": 1, "process_id": launch.process, "thread_id": launch.process, "grid_size": grid,
        "kernel_id": 10, "kernel_name": launch.kernel, "workgroup_size": block, "lds_block_size": launch.lds,
        "group_segment_size": launch.lds, "scratch_size": launch.scratch, "private_segment_size": launch.scratch,
        "vgpr_count": launch.vgprs, "accum_vgpr_count": launch.agprs, "sgpr_count": launch.sgprs,
        "start_timestamp": launch.start, "end_timestamp": launch.end, "duration": launch.ns,
    }  # fmt: skip
    for axis, size, width in zip("xyz", launch.grid, launch.block, strict=True):
        values[f"grid_size_{axis}"], values[f"workgroup_size_{axis}"] = size, width
    return values


def v3_counters(path, made, generation="7.0"):
    """Write rocprofv3's counter_collection.csv."""
    header = COUNTERS_V3[generation].split()
    rows = []
    for launch in made:
        values = _values(launch, names_agent=generation in {"7.0", "convert"})
        for name, value in launch.counters.items():
            values |= {"counter_name": name, "counter_value": float(value)}
            rows.append([values[column.lower()] for column in header])
    return write_rows(path, header, rows)


def v3_trace(path, made, generation="7.0"):
    """Write rocprofv3's kernel_trace.csv."""
    header = TRACE_V3[generation].split()
    rows = [
        [_values(launch, names_agent=generation in {"7.0", "convert"})[column.lower()] for column in header]
        for launch in made
    ]
    return write_rows(path, header, rows)


AGENT = {
    "Node_Id": 1, "Logical_Node_Id": 2, "Agent_Type": "GPU", "Cpu_Cores_Count": 0, "Simd_Count": 1216,
    "Max_Waves_Per_Simd": 8, "Lds_Size_In_Kb": 64, "Wave_Front_Size": 64, "Num_Xcc": 8, "Cu_Count": 304,
    "Num_Shader_Banks": 32, "Simd_Per_Cu": 4, "Gfx_Target_Version": 90402, "Max_Engine_Clk_Fcompute": 2100,
    "Max_Waves_Per_Cu": 32, "Name": "gfx942", "Product_Name": "AMD Instinct MI300X",
}  # fmt: skip


def v3_agents(path, **changes):
    """Write rocprofv3's agent_info.csv: a CPU and a GPU."""
    cpu = AGENT | {"Node_Id": 0, "Logical_Node_Id": 0, "Agent_Type": "CPU", "Name": "AMD EPYC", "Cu_Count": 0}
    gpu = AGENT | changes
    return write_rows(path, list(AGENT), [list(cpu.values()), list(gpu.values())])


def v3_stats(path, made):
    """Write rocprofv3's kernel_stats.csv."""
    header = ["Name", "Calls", "TotalDurationNs", "AverageNs", "Percentage", "MinNs", "MaxNs", "StdDev"]
    rows = [[launch.kernel, 1, launch.ns, float(launch.ns), 50.0, launch.ns, launch.ns, 0.0] for launch in made]
    return write_rows(path, header, rows)


def v3_json(path, made, *, instances=1):
    """Write rocprofv3's results.json, each counter split over some instances."""
    kernels = list(dict.fromkeys(launch.kernel for launch in made))
    counters = list(dict.fromkeys(name for launch in made for name in launch.counters))
    processes = []
    for pid in dict.fromkeys(launch.process for launch in made):
        collected, dispatched = [], []
        for launch in (launch for launch in made if launch.process == pid):
            data = {
                "start_timestamp": launch.start, "end_timestamp": launch.end,
                "correlation_id": {"internal": launch.dispatch, "external": 0},
                "dispatch_info": {
                    "agent_id": {"handle": 9280}, "queue_id": {"handle": launch.queue},
                    "kernel_id": kernels.index(launch.kernel) + 1, "dispatch_id": launch.dispatch,
                    "private_segment_size": launch.scratch, "group_segment_size": launch.lds,
                    "workgroup_size": dict(zip("xyz", launch.block, strict=True)),
                    "grid_size": dict(zip("xyz", launch.grid, strict=True)),
                },
            }  # fmt: skip
            records = [
                {"counter_id": {"handle": 100 + counters.index(name)}, "value": value / instances}
                for name, value in launch.counters.items() for _ in range(instances)
            ]  # fmt: skip
            if records:
                collected.append({
                    "thread_id": pid, "dispatch_data": data, "records": records, "arch_vgpr_count": launch.vgprs,
                    "sgpr_count": launch.sgprs, "lds_block_size_v": launch.lds,
                })  # fmt: skip
            dispatched.append({"thread_id": pid, **data})
        first = made[0]
        symbols = [{"kernel_id": 0, "formatted_kernel_name": ""}] + [
            {
                "kernel_id": index + 1, "formatted_kernel_name": name, "arch_vgpr_count": first.vgprs,
                "accum_vgpr_count": first.agprs, "sgpr_count": first.sgprs,
            }
            for index, name in enumerate(kernels)
        ]  # fmt: skip
        agent = {key.lower(): value for key, value in AGENT.items()} | {"id": {"handle": 9280}, "type": 2}
        processes.append({
            "metadata": {"pid": pid, "command": ["./app"], "environment": {"TOKEN": "secret"}},
            "agents": [{"id": {"handle": 1}, "type": 1, "node_id": 0}, agent],
            "counters": [{"id": {"handle": 100 + i}, "name": name} for i, name in enumerate(counters)],
            "kernel_symbols": symbols,
            "callback_records": {"counter_collection": collected},
            "buffer_records": {"kernel_dispatch": dispatched},
        })  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"rocprofiler-sdk-tool": processes}))
    return path


_ROCPD = {
    "metadata": "id, tag, value", "string": "id, guid, string", "info_process": "id, guid, pid, command, environment",
    "info_agent": "id, guid, type, absolute_index, logical_index, name, product_name, extdata",
    "info_kernel_symbol": "id, guid, display_name, arch_vgpr_count, accum_vgpr_count, sgpr_count",
    "info_pmc": "id, guid, name",
    "kernel_dispatch": 'id, guid, pid, agent_id, kernel_id, dispatch_id, queue_id, start, "end", lds, scratch, '
    "gx, gy, gz, bx, by, bz",
    "pmc_event": "id, guid, event_id, pmc_id, value",
}  # fmt: skip
_ROCPD_VIEWS = {
    3: """
CREATE VIEW kernels AS SELECT K.id, K.guid, P.pid, S.display_name AS name, K.kernel_id, K.dispatch_id,
  A.logical_index AS agent_log_index, K.queue_id, K.start, K."end", gx AS grid_x, gy AS grid_y, gz AS grid_z,
  bx AS workgroup_x, by AS workgroup_y, bz AS workgroup_z, lds AS lds_size, scratch AS scratch_size
FROM rocpd_kernel_dispatch K JOIN rocpd_info_process P ON P.id = K.pid AND P.guid = K.guid
  JOIN rocpd_info_agent A ON A.id = K.agent_id AND A.guid = K.guid
  JOIN rocpd_info_kernel_symbol S ON S.id = K.kernel_id AND S.guid = K.guid;
CREATE VIEW pmc_events AS SELECT E.id, E.guid, E.pmc_id, P.pid, K.dispatch_id, I.name AS counter_name,
  E.value AS counter_value
FROM rocpd_pmc_event E JOIN rocpd_info_pmc I ON I.id = E.pmc_id AND I.guid = E.guid
  JOIN rocpd_kernel_dispatch K ON K.id = E.event_id AND K.guid = E.guid
  JOIN rocpd_info_process P ON P.id = K.pid AND P.guid = K.guid;
""",
    # The last one joins without the guid, as AMD's does.
    4: """
CREATE VIEW kernels AS SELECT K.id, K.guid, P.pid, S.display_name AS name, K.kernel_id, K.dispatch_id,
  A.logical_index AS agent_logical_index, K.queue_id, K.start, K."end", gx AS grid_x, gy AS grid_y, gz AS grid_z,
  bx AS workgroup_x, by AS workgroup_y, bz AS workgroup_z, gx / bx AS grid_size_x, lds AS lds_block_size,
  scratch AS scratch_size, K.id AS event_id
FROM rocpd_kernel_dispatch K JOIN rocpd_info_process P ON P.id = K.pid AND P.guid = K.guid
  JOIN rocpd_info_agent A ON A.id = K.agent_id AND A.guid = K.guid
  JOIN rocpd_info_kernel_symbol S ON S.id = K.kernel_id AND S.guid = K.guid;
CREATE VIEW pmc_events AS SELECT E.id, E.guid, E.pmc_id, E.event_id, I.name, E.value
FROM rocpd_pmc_event E JOIN rocpd_info_pmc I ON I.id = E.pmc_id AND I.guid = E.guid;
CREATE VIEW kernel_pmc_events AS SELECT K.guid, K.pid, K.dispatch_id, E.pmc_id, E.name AS pmc_name,
  E.value AS pmc_value
FROM kernels K JOIN pmc_events E ON E.event_id = K.event_id;
""",
}


def rocpd(path, made, *, schema=3, instances=1, merged=False):
    """Write a rocpd database: tables with a suffix, views without, each counter split over some instances.

    ``merged``: of several processes, as `rocpd merge` does: each has tables of its own, whose numbers begin again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    base = sqlite3.connect(path)
    pids = list(dict.fromkeys(launch.process for launch in made))
    parts = {f"u{pid}": [pid] for pid in pids} if merged else {"u": pids}
    for name, columns in _ROCPD.items():
        tables = [f"rocpd_{name}_{suffix}" for suffix in parts]
        for table in tables:
            base.execute(f"CREATE TABLE {table} ({columns})")
        every = " UNION ALL ".join(f"SELECT * FROM {table}" for table in tables)  # noqa: S608 - own names
        base.execute(f"CREATE VIEW rocpd_{name} AS {every}")
    base.executescript(_ROCPD_VIEWS[schema])
    base.execute("CREATE VIEW processes AS SELECT guid, pid, command FROM rocpd_info_process")
    for suffix, own in parts.items():
        of_part = [launch for launch in made if launch.process in own]
        _fill_rocpd(base, suffix, f"{GUID}-{suffix}", of_part, {3: "3", 4: "4.1.0"}[schema], instances)
    base.commit()
    base.close()
    return path


def _fill_rocpd(base, suffix, guid, made, version, instances):
    def insert(table, rows):
        rows = list(rows)
        marks = ",".join("?" * len(_ROCPD[table].split(",")))
        base.executemany(f"INSERT INTO rocpd_{table}_{suffix} VALUES ({marks})", rows)  # noqa: S608 - own names

    insert("metadata", [(1, "schema_version", version)])
    pids = list(dict.fromkeys(launch.process for launch in made))
    insert("info_process", [(i, guid, pid, "./app", '{"TOKEN": "secret"}') for i, pid in enumerate(pids)])
    extra = json.dumps({key.lower(): value for key, value in AGENT.items()})
    insert("info_agent", [(1, guid, "CPU", 0, 0, "epyc", "epyc", "{}")])
    insert("info_agent", [(2, guid, "GPU", 1, 2, "gfx942", "AMD Instinct MI300X", extra)])
    kernels = list(dict.fromkeys(launch.kernel for launch in made))
    symbol = {launch.kernel: launch for launch in made}
    insert(
        "info_kernel_symbol",
        [(i, guid, n, symbol[n].vgprs, symbol[n].agprs, symbol[n].sgprs) for i, n in enumerate(kernels)],
    )
    names = list(dict.fromkeys(name for launch in made for name in launch.counters))
    insert("info_pmc", [(i, guid, name) for i, name in enumerate(names)])
    event = 0
    for row, launch in enumerate(made):
        insert("kernel_dispatch", [(
            row, guid, pids.index(launch.process), 2, kernels.index(launch.kernel), launch.dispatch, launch.queue,
            launch.start, launch.end, launch.lds, launch.scratch, *launch.grid, *launch.block,
        )])  # fmt: skip
        for name, value in launch.counters.items():
            for _ in range(instances):
                event += 1
                insert("pmc_event", [(event, guid, row, names.index(name), value / instances)])


def later(made, by=1_000_000_000, **changes):
    """Return the same launches at a later time, as another pass has them."""
    return [replace(launch, start=launch.start + by, **changes) for launch in made]
