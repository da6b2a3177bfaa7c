"""Small outputs of rocprof 1, rocprofv2 and rocprof-compute (Omniperf) of the same launches as in `generators`."""

import csv
import gzip
import json

from .generators import GUID


def escaped(path, header, rows):
    """Write a CSV file as Python's csv module does (rocprof v1 and v2, and all that pandas writes)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([header, *rows])
    return path


def v1(path, made, *, old=False, suffix=".kd"):
    """Write rocprof v1's wide CSV, in the header of ROCm 5.3 and later or of the time before."""
    names = list(dict.fromkeys(name for launch in made for name in launch.counters))
    registers = ["vgpr", "sgpr", "fbar"] if old else ["arch_vgpr", "accum_vgpr", "sgpr", "wave_size"]
    header = [
        "Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr", "lds", "scr",
        *registers, "sig", "obj", *names, "DispatchNs", "BeginNs", "EndNs", "CompleteNs",
    ]  # fmt: skip
    rows = []
    for launch in made:
        counts = [launch.vgprs, launch.sgprs, 0] if old else [launch.vgprs, launch.agprs, launch.sgprs, 64]
        rows.append([
            launch.dispatch, launch.kernel + suffix, launch.agent, launch.queue, 0, launch.process, launch.process,
            *launch.work_items(), launch.lds, launch.scratch, *counts, "0x0", "0x7f", *(
                launch.counters.get(name, "") for name in names
            ), launch.start - 9, launch.start, launch.end, launch.end + 9,
        ])  # fmt: skip
    return escaped(path, header, rows)


def chrome(path, made):
    """Write rocprof v1's trace JSON."""
    events = [{}, {"args": {"name": "CPU HIP API"}, "ph": "M", "pid": 2, "name": "process_name"}]
    events.append({"args": {"name": "GPU0"}, "ph": "M", "pid": 6, "name": "process_name"})
    for launch in made:
        arguments = {
            "BeginNs": launch.start, "EndNs": launch.end, "dev-id": launch.agent, "queue-id": launch.queue,
            "Name": launch.kernel, "pid": launch.process, "tid": 1,
        }  # fmt: skip
        texts = {key: str(value) for key, value in arguments.items()}
        events.append({"ph": "X", "name": launch.kernel, "pid": "6", "tid": "1", "args": texts})
        events.append({"ph": "X", "name": "hipLaunchKernel", "pid": "2", "tid": "1", "args": texts})
    path.write_text(json.dumps({"traceEvents": events, "otherData": {}}))
    return path


V2 = [
    "Dispatch_ID", "GPU_ID", "Queue_ID", "PID", "TID", "Grid_Size", "Workgroup_Size", "LDS_Per_Workgroup",
    "Scratch_Per_Workitem", "Arch_VGPR", "Accum_VGPR", "SGPR", "Wave_Size", "Kernel_Name", "Start_Timestamp",
    "End_Timestamp", "Correlation_ID",
]  # fmt: skip


def v2(path, made, *, suffix=" (.kd)", blank=True):
    """Write rocprofv2's wide CSV: an empty line follows the header."""
    names = list(dict.fromkeys(name for launch in made for name in launch.counters))
    rows = [
        [
            launch.dispatch, launch.agent, launch.queue, launch.process, launch.process, *launch.work_items(),
            launch.lds, launch.scratch, launch.vgprs, launch.agprs, launch.sgprs, 64, launch.kernel + suffix,
            launch.start, launch.end, 0, *(launch.counters.get(name, "") for name in names),
        ]
        for launch in made
    ]  # fmt: skip
    return escaped(path, V2 + names, ([[]] if blank else []) + rows)


SYSINFO = {
    "1": {
        "workload_name": "w", "command": "./app", "host_name": "h", "host_rocmver": "5.7.1", "gpu_soc": "gfx908",
        "numSE": 8, "numCU": 120, "numSIMD": 4, "waveSize": 64, "maxWavesPerCU": 40, "sclk": 1502, "mclk": 1200,
        "L2Banks": 32, "LDSBanks": 32, "name": "mi100",
    },
    "2": {
        "workload_name": "w", "command": "./app", "version": 2, "hostname": "h", "rocm_version": "6.2.0",
        "gpu_model": "MI200", "gpu_arch": "gfx90a", "cu_per_gpu": 104, "simd_per_cu": 4, "se_per_gpu": 8,
        "wave_size": 64, "max_waves_per_cu": 32, "max_sclk": 1700, "max_mclk": 1600, "total_l2_chan": 32,
        "lds_banks_per_cu": 32, "num_xcd": 1, "num_hbm_channels": 32, "hbm_bw": 1638.4,
    },
    "3": {
        "workload_name": "w", "command": "./app", "version": 3, "hostname": "h", "rocm_version": "7.1.0",
        "gpu_series": "MI300", "gpu_model": "MI300X_A1", "gpu_arch": "gfx942", "cu_per_gpu": 304, "simd_per_cu": 4,
        "se_per_gpu": 32, "wave_size": 64, "max_waves_per_cu": 32, "max_sclk": 0, "max_mclk": "",
        "total_l2_chan": 128, "lds_banks_per_cu": 32, "num_xcd": 8, "num_hbm_channels": 128,
    },
}  # fmt: skip


def sysinfo(folder, generation):
    """Write a workload's sysinfo.csv; like the tool, without an end of the last line."""
    path = escaped(folder / "sysinfo.csv", list(SYSINFO[generation]), [list(SYSINFO[generation].values())])
    path.write_text(path.read_text().rstrip("\n"))
    return path


def merged(path, made, passes, *, generation="2"):
    """Write rocprof-compute's pmc_perf.csv: passes (lists of counters) side by side, description columns repeated."""
    kernel, repeated = {"1": ("KernelName", ["wave_size"]), "2": ("Kernel_Name", ["wave_size", "obj"])}.get(
        generation, ("Kernel_Name", ["Kernel_ID"])
    )
    sizes = ["grd", "wgr", "lds", "scr", "arch_vgpr", "accum_vgpr", "sgpr"] if generation == "1" else [
        "Grid_Size", "Workgroup_Size", "LDS_Per_Workgroup", "Scratch_Per_Workitem", "Arch_VGPR", "Accum_VGPR", "SGPR",
    ]  # fmt: skip
    first, gpu = ("Index", "gpu-id") if generation == "1" else ("Dispatch_ID", "GPU_ID")
    start, end = ("BeginNs", "EndNs") if generation == "1" else ("Start_Timestamp", "End_Timestamp")
    header = [first, kernel, gpu, *sizes]
    for number, names in enumerate(passes):
        header += [f"{name}_{number}" if number else name for name in repeated] + list(names)
    rows = []
    for launch in made:
        row = [
            launch.dispatch, launch.kernel, launch.agent, *launch.work_items(), launch.lds, launch.scratch,
            launch.vgprs, launch.agprs, launch.sgprs,
        ]  # fmt: skip
        for names in passes:
            row += ["64"] * len(repeated) + [launch.counters[name] for name in names]
        rows.append([*row, launch.start + 0.5, launch.end + 0.5])
    return escaped(path, [*header, start, end], rows)


LONG = [
    "GPU_ID", "GUID", "Correlation_Id", "Dispatch_ID", "Grid_Size", "Workgroup_Size", "LDS_Per_Workgroup",
    "Scratch_Per_Workitem", "Arch_VGPR", "Accum_VGPR", "SGPR", "Kernel_Name", "Start_Timestamp", "End_Timestamp",
    "Kernel_ID", "Counter_Name", "Counter_Value",
]  # fmt: skip


def compute_long(path, made, guid=GUID):
    """Write rocprof-compute's long pmc_perf.csv."""
    rows = [
        [
            launch.agent, guid, 1, launch.dispatch, *launch.work_items(), launch.lds, launch.scratch, launch.vgprs,
            launch.agprs, launch.sgprs, launch.kernel, launch.start, launch.end, 0, name, value,
        ]
        for launch in made for name, value in launch.counters.items()
    ]  # fmt: skip
    return escaped(path, LONG, rows)


def compute_by_number(folder, made, *, name="pmc_perf_0_4711", instances=1):
    """Write the three files of rocprof-compute's own tool, which refer to each other by number."""
    kernels = list(dict.fromkeys((launch.kernel, launch.vgprs, launch.agprs, launch.sgprs) for launch in made))
    number = {kernel[0]: place + 7 for place, kernel in enumerate(kernels)}
    tables = {
        "counters": [["dispatch_id", "gpu_id", "kernel_id", "lds_per_workgroup", "counter_id", "counter_name",
                      "counter_value"]],
        "dispatch": [["dispatch_id", "gpu_id", "kernel_id", "grid_size", "workgroup_size", "lds_per_workgroup",
                      "scratch_per_workitem", "start_timestamp", "end_timestamp", "correlation_id"]],
        "kernel_symbols": [["kernel_id", "kernel_name", "kernel_short_name", "arch_vgpr", "accum_vgpr", "sgpr"]],
    }  # fmt: skip
    for launch in made:
        about = [launch.dispatch, launch.agent, number[launch.kernel]]
        tables["dispatch"].append(
            [*about, *launch.work_items(), launch.lds, launch.scratch, launch.start, launch.end, launch.dispatch + 500]
        )
        for _ in range(instances):
            tables["counters"] += [
                [*about, launch.lds, 5, counter, value / instances] for counter, value in launch.counters.items()
            ]
    tables["kernel_symbols"] += [[number[kernel[0]], kernel[0], "short", *kernel[1:]] for kernel in kernels]
    for kind, rows in tables.items():
        path = escaped(folder / f"{kind}_{name}.csv", rows[0], rows[1:])
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return folder / f"counters_{name}.csv.gz"
