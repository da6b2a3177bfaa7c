"""Our metrics beside those that ``rocprof-compute analyze`` prints for the same workload folder.

It needs a checkout of ROCm/rocprofiler-compute and a Python with its requirements, no GPU::

    python -m venv rpcenv && rpcenv/bin/pip install -r rocprofiler-compute/requirements.txt "pandas<3" "numpy<2"
    python research/peers/against_rocprof_compute.py --python rpcenv/bin/python \
        --script rocprofiler-compute/src/rocprof-compute WORKLOAD…

Each line is one metric of its table 2.1 (speed of light): what it prints, ours by the same convention (the mean of the
launches' values, counters taken across passes), and ours as the report has it (sums over sums, one pass where the file
has one). The exit status is 1 if the first two differ in a printed digit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Its names -> ours.
METRICS = {
    "VALU IOPs": "valu_iops", "SALU Utilization": "salu_busy_pct", "VALU Utilization": "valu_busy_pct",
    "MFMA Utilization": "matrix_busy_pct", "VMEM Utilization": "vmem_busy_pct", "Branch Utilization": "branch_busy_pct",
    "VALU Active Threads": "valu_active_lanes", "IPC": "ipc", "Wavefront Occupancy": "waves",
    "Theoretical LDS Bandwidth": "lds_gbps", "LDS Bank Conflicts/Access": "lds_conflicts_per_access",
    "vL1D Cache Hit Rate": "l1_hit_pct", "vL1D Cache BW": "l1_gbps", "L2 Cache Hit Rate": "l2_hit_pct",
    "L2 Cache BW": "l2_gbps", "L2-Fabric Read BW": "read_gbps", "L2-Fabric Write BW": "write_gbps",
    "L2-Fabric Read Latency": "read_latency_cycles", "L2-Fabric Write Latency": "write_latency_cycles",
    "sL1D Cache Hit Rate": "scalar_l1_hit_pct", "L1I Hit Rate": "instruction_l1_hit_pct",
}  # fmt: skip


def theirs(python: str, script: str, workload: Path) -> dict[str, str]:
    """Return what it prints in table 2.1, by metric; it writes into the folder, so it gets a copy."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(workload, Path(folder) / workload.name))
        run = subprocess.run(
            [python, script, "analyze", "-p", copy], capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONIOENCODING": "utf-8"},
        )  # fmt: skip
    found = {}
    for line in run.stdout.splitlines():
        cells = [cell.strip() for cell in line.split("│")]
        if len(cells) > 4 and cells[1].startswith("2.1."):
            found[cells[2]] = cells[3]
    if not found:
        last = (run.stdout + run.stderr).strip().splitlines()[-1:]
        print(f"  it prints no table 2.1: {' '.join(last)}")
    return found


def ours(workload: Path) -> dict[str, tuple[float, float | None]]:
    """Return (by its convention over all launches, as the report has it for the kernel of the most time)."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rocattn_profiling.cli", "report", workload, "--json", "--out", folder]
        path = os.pathsep.join([str(ROOT), str(ROOT / "profiling")])
        text = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONPATH": path}
        )
    kernels = json.loads(text.stdout)["kernels"]
    found = {}
    for key in METRICS.values():
        values = [kernel["metrics"][key] for kernel in kernels if key in kernel["metrics"]]
        launches = sum(value["launches"] for value in values)
        if launches:
            means = [value["mean"] if value["across"] is None else value["across"] for value in values]
            mean = sum(m * value["launches"] for m, value in zip(means, values, strict=True)) / launches
            found[key] = (mean, values[0]["value"])
    return found


def main() -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="a Python with rocprof-compute's requirements")
    parser.add_argument("--script", required=True, help="its src/rocprof-compute")
    parser.add_argument("workloads", nargs="+", type=Path, metavar="WORKLOAD", help="folders with a pmc_perf.csv")
    arguments = parser.parse_args()
    differ = compared = 0
    for workload in arguments.workloads:
        print(workload.name)
        printed, own = theirs(arguments.python, arguments.script, workload), ours(workload)
        for name, key in METRICS.items():
            text, (mean, reported) = printed.get(name, ""), own.get(key, (None, None))
            if not text or mean is None:
                if text and text != "inf":
                    print(f"  {name:28} {text:>12} {'none':>12}")
                    differ += 1
                continue
            # Half a unit of its last printed digit.
            equal = abs(float(text) - mean) <= 0.5000001 * 10.0 ** -len(text.partition(".")[2])
            compared += 1
            differ += not equal
            shown = "left out" if reported is None else f"{reported:.2f}"
            print(f"  {name:28} {text:>12} {mean:12.2f} {shown:>12}{'' if equal else '  differs'}")
    print(f"{compared} compared, {differ} differ")
    return 1 if differ or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
