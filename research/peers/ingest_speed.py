"""Reading large profiler files: this project's reader beside a bare read of the same columns, interleaved.

    python research/peers/ingest_speed.py [--counter-rows 5000000] [--dispatches 2000000] [--rounds 3] [--folder DIR]

Writes a rocprofv3 counter CSV and a rocpd database (schema 3, the real tables and views) into a temporary folder,
then reads each in turns with `rocattn_profiling.profile.ingest.read` and with what one would type:
`pandas.read_csv(usecols=...)`, and `sqlite3` rows into a frame. Every read is a fresh process. Printed per file: the
fastest of each, their ratio, and the peak memory of our read (over an interpreter that only imported it) against the
memory of the table it returns. The machine should be idle; the minima are compared because other work only ever adds
time.
"""

from __future__ import annotations

import argparse
import json
import random
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

COUNTERS = [
    "GRBM_GUI_ACTIVE", "SQ_WAVES", "SQ_WAVE_CYCLES", "SQ_BUSY_CU_CYCLES", "SQ_INSTS_VALU", "SQ_ACTIVE_INST_VALU",
    "TCC_EA0_RDREQ_sum", "TCC_HIT_sum",
]  # fmt: skip
KERNELS = [
    f"void attention::forward<{width}, {tile}, (bool)1, std::array<char*, 2ul> >(float const*, int, Params<{width}>)"
    for width in (32, 64, 96, 128, 192, 256)
    for tile in (16, 32, 64, 128)
]
HEADER = [
    "Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Process_Id", "Thread_Id", "Grid_Size", "Kernel_Id",
    "Kernel_Name", "Workgroup_Size", "LDS_Block_Size", "Scratch_Size", "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count",
    "Counter_Name", "Counter_Value", "Start_Timestamp", "End_Timestamp",
]  # fmt: skip
NEEDED = [name for name in HEADER if name not in {"Correlation_Id", "Thread_Id", "Kernel_Id"}]

TABLES = """
CREATE TABLE rocpd_metadata_u (id INTEGER PRIMARY KEY, tag TEXT, value TEXT);
CREATE TABLE rocpd_string_u (id INTEGER PRIMARY KEY, guid TEXT, string TEXT);
CREATE TABLE rocpd_info_node_u (id INTEGER PRIMARY KEY, guid TEXT, hostname TEXT);
CREATE TABLE rocpd_info_process_u (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, command TEXT,
  environment TEXT);
CREATE TABLE rocpd_info_thread_u (id INTEGER PRIMARY KEY, guid TEXT, tid INTEGER);
CREATE TABLE rocpd_info_agent_u (id INTEGER PRIMARY KEY, guid TEXT, type TEXT, absolute_index INTEGER,
  logical_index INTEGER, type_index INTEGER, name TEXT, product_name TEXT, extdata TEXT);
CREATE TABLE rocpd_info_queue_u (id INTEGER PRIMARY KEY, guid TEXT, pid INTEGER, name TEXT);
CREATE TABLE rocpd_info_stream_u (id INTEGER PRIMARY KEY, guid TEXT, name TEXT);
CREATE TABLE rocpd_info_kernel_symbol_u (id INTEGER PRIMARY KEY, guid TEXT, code_object_id INTEGER, display_name TEXT,
  group_segment_size INTEGER, private_segment_size INTEGER, sgpr_count INTEGER, arch_vgpr_count INTEGER,
  accum_vgpr_count INTEGER);
CREATE TABLE rocpd_event_u (id INTEGER PRIMARY KEY, guid TEXT, category_id INTEGER, stack_id INTEGER,
  parent_stack_id INTEGER, correlation_id INTEGER);
CREATE TABLE rocpd_kernel_dispatch_u (id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, tid INTEGER,
  agent_id INTEGER, kernel_id INTEGER, dispatch_id INTEGER, queue_id INTEGER, stream_id INTEGER, start BIGINT,
  "end" BIGINT, private_segment_size INTEGER, group_segment_size INTEGER, workgroup_size_x INTEGER,
  workgroup_size_y INTEGER, workgroup_size_z INTEGER, grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER,
  region_name_id INTEGER, event_id INTEGER);
CREATE TABLE rocpd_info_pmc_u (id INTEGER PRIMARY KEY, guid TEXT, name TEXT);
CREATE TABLE rocpd_pmc_event_u (id INTEGER PRIMARY KEY, guid TEXT, event_id INTEGER, pmc_id INTEGER, value REAL);
"""
# The joins of the profiler's own view, schema 3.
KERNELS_VIEW = """
CREATE VIEW kernels AS SELECT K.id, K.guid, T.tid, R.string AS region, S.display_name AS name, K.nid, P.pid,
  A.absolute_index AS agent_abs_index, A.logical_index AS agent_log_index, A.type_index AS agent_type_index,
  A.type AS agent_type, S.code_object_id, K.kernel_id, K.dispatch_id, K.stream_id, K.queue_id, Q.name AS queue,
  ST.name AS stream, K.start, K.end, (K.end - K.start) AS duration, K.grid_size_x AS grid_x, K.grid_size_y AS grid_y,
  K.grid_size_z AS grid_z, K.workgroup_size_x AS workgroup_x, K.workgroup_size_y AS workgroup_y,
  K.workgroup_size_z AS workgroup_z, K.group_segment_size AS lds_size, K.private_segment_size AS scratch_size,
  S.arch_vgpr_count AS vgpr_count, S.accum_vgpr_count, S.sgpr_count, E.correlation_id AS corr_id
FROM rocpd_kernel_dispatch K
  INNER JOIN rocpd_info_agent A ON A.id = K.agent_id AND A.guid = K.guid
  INNER JOIN rocpd_event E ON E.id = K.event_id AND E.guid = K.guid
  INNER JOIN rocpd_string R ON R.id = K.region_name_id AND R.guid = K.guid
  INNER JOIN rocpd_info_kernel_symbol S ON S.id = K.kernel_id AND S.guid = K.guid
  LEFT JOIN rocpd_info_stream ST ON ST.id = K.stream_id AND ST.guid = K.guid
  LEFT JOIN rocpd_info_queue Q ON Q.id = K.queue_id AND Q.guid = K.guid
  INNER JOIN rocpd_info_process P ON P.id = Q.pid AND P.guid = Q.guid
  INNER JOIN rocpd_info_thread T ON T.id = K.tid AND T.guid = K.guid
"""
PMC_VIEW = """
CREATE VIEW pmc_events AS SELECT E.id, E.guid, E.pmc_id, E.event_id, P.pid, K.dispatch_id, I.name AS counter_name,
  E.value AS counter_value
FROM rocpd_pmc_event E
  INNER JOIN rocpd_info_pmc I ON I.id = E.pmc_id AND I.guid = E.guid
  INNER JOIN rocpd_kernel_dispatch K ON K.event_id = E.event_id AND K.guid = E.guid
  INNER JOIN rocpd_info_process P ON P.id = K.pid AND P.guid = K.guid
"""
BARE_QUERY = (
    "SELECT pid, dispatch_id, name, grid_x, grid_y, grid_z, workgroup_x, workgroup_y, workgroup_z, lds_size, "
    'scratch_size, vgpr_count, accum_vgpr_count, sgpr_count, start, "end", queue_id, agent_log_index FROM kernels'
)

OURS = """
from rocattn_profiling.profile import ingest
from rocattn_profiling.profile.ingest import detect
base = peak()
began = time.perf_counter()
profile = ingest.read([path])
seconds = time.perf_counter() - began
tables = (profile.dispatches, profile.counters)
rows = len(profile.counters) or len(profile.dispatches)
assert not profile.problems, profile.problems
"""
BARE_CSV = """
import pandas
base = peak()
began = time.perf_counter()
tables = (pandas.read_csv(path, usecols=NEEDED),)
seconds = time.perf_counter() - began
rows = len(tables[0])
"""
BARE_SQL = """
import pandas, sqlite3
base = peak()
began = time.perf_counter()
cursor = sqlite3.connect(path).execute(BARE_QUERY)
tables = (pandas.DataFrame(cursor.fetchall(), columns=[column[0] for column in cursor.description]),)
seconds = time.perf_counter() - began
rows = len(tables[0])
"""
FRAME = """
import json, resource, sys, time
path = sys.argv[1]
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
{body}
table = sum(int(frame.memory_usage(deep=True).sum()) for frame in tables)
print(json.dumps(dict(seconds=seconds, peak=peak() - base, table=table, rows=rows)))
"""


def write_csv(path: Path, rows: int) -> None:
    """Write a counter CSV as rocprofv3 of ROCm 7 does: a row per dispatch and counter."""
    rng = random.Random(7)  # noqa: S311 - test data
    with path.open("w") as file:
        file.write(",".join(f'"{name}"' for name in HEADER) + "\n")
        clock = 1_550_151_853_029_637
        for dispatch in range(1, rows // len(COUNTERS) + 1):
            kernel = rng.randrange(len(KERNELS))
            end = clock + rng.randrange(3_000, 900_000)
            head = (
                f'{dispatch},{dispatch},"Agent 4",1,834304,834304,{256 * rng.randrange(1, 4096)},{kernel + 10},'
                f'"{KERNELS[kernel]}",256,{512 * rng.randrange(64)},0,{8 * rng.randrange(1, 32)},0,112,'
            )
            file.writelines(f'{head}"{name}",{rng.randrange(1, 10**9)}.000000,{clock},{end}\n' for name in COUNTERS)
            clock = end + rng.randrange(1_000, 50_000)


def write_rocpd(path: Path, dispatches: int) -> None:
    """Write a rocpd database with the tables and views of schema 3."""
    rng = random.Random(7)  # noqa: S311 - test data
    guid = "00003fd6-c565-7565-938c-1314a3ac3a92"
    base = sqlite3.connect(path)
    base.executescript(TABLES)
    names = [row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type='table'").fetchall()]
    for name in names:
        base.execute(f"CREATE VIEW {name.removesuffix('_u')} AS SELECT * FROM {name}")  # noqa: S608 - names of TABLES
    base.execute(KERNELS_VIEW)
    base.execute(PMC_VIEW)
    base.execute("CREATE VIEW processes AS SELECT guid, pid, command FROM rocpd_info_process")
    base.execute("INSERT INTO rocpd_metadata_u VALUES (1, 'schema_version', '3')")
    base.execute("INSERT INTO rocpd_string_u VALUES (1, ?, '')", (guid,))
    base.execute("INSERT INTO rocpd_info_process_u VALUES (1, ?, 1, 834304, './app', '{}')", (guid,))
    base.execute("INSERT INTO rocpd_info_thread_u VALUES (1, ?, 834304)", (guid,))
    base.execute("INSERT INTO rocpd_info_agent_u VALUES (1, ?, 'GPU', 2, 2, 0, 'gfx942', 'MI300X', '{}')", (guid,))
    base.execute("INSERT INTO rocpd_info_queue_u VALUES (1, ?, 1, 'Queue 0')", (guid,))
    base.execute("INSERT INTO rocpd_info_stream_u VALUES (1, ?, 'Stream 0')", (guid,))
    symbols = [(index + 1, guid, 1, name, 0, 0, 48, 96, 4) for index, name in enumerate(KERNELS)]
    base.executemany("INSERT INTO rocpd_info_kernel_symbol_u VALUES (?,?,?,?,?,?,?,?,?)", symbols)

    def rows():  # a generator, so that two million rows do not lie in memory
        clock = 1_071_040_913_789_950
        for index in range(1, dispatches + 1):
            end = clock + rng.randrange(3_000, 900_000)
            kernel, width = rng.randrange(1, len(KERNELS) + 1), 256 * rng.randrange(1, 4096)
            yield (index, guid, 1, 1, 1, 1, kernel, index, 1, 1, clock, end, 0, 0, 256, 1, 1, width, 8, 1, 1, index)
            clock = end + 1_000

    events = ((index, guid, 1, index, index, 0) for index in range(1, dispatches + 1))
    base.executemany("INSERT INTO rocpd_event_u VALUES (?,?,?,?,?,?)", events)
    base.executemany(f"INSERT INTO rocpd_kernel_dispatch_u VALUES ({','.join('?' * 22)})", rows())  # noqa: S608 - marks only
    base.commit()
    base.close()


def measure(body: str, path: Path) -> dict[str, float]:
    """Run one read in a fresh process and return its time, memory and rows."""
    constants = f"NEEDED = {NEEDED!r}\nBARE_QUERY = {BARE_QUERY!r}\n"
    code = FRAME.format(body=constants + body)
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def compare(name: str, path: Path, bare: str, rounds: int) -> None:
    """Print the two readers' times and our memory for one file."""
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(measure(bare, path))
        ours.append(measure(OURS, path))
    fast, base = min(run["seconds"] for run in ours), min(run["seconds"] for run in theirs)
    memory = min(ours, key=lambda run: run["peak"])
    bare_peak = min(run["peak"] for run in theirs)
    print(
        f"{name}: {int(memory['rows'])} rows, {path.stat().st_size / 1e6:.0f} MB; ours {fast:.2f} s, "
        f"bare {base:.2f} s, ratio {fast / base:.2f} (goal 1.2); peak {memory['peak'] / 1e6:.0f} MB over a table of "
        f"{memory['table'] / 1e6:.0f} MB, ratio {memory['peak'] / memory['table']:.2f} (goal 2.5); "
        f"bare peak {bare_peak / 1e6:.0f} MB",
        flush=True,
    )


def main() -> None:
    """Generate the files and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counter-rows", type=int, default=5_000_000)
    parser.add_argument("--dispatches", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the files go (default: a temporary folder)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        if arguments.counter_rows:
            table = Path(folder, "run_counter_collection.csv")
            write_csv(table, arguments.counter_rows)
            compare("rocprofv3 counter CSV", table, BARE_CSV, arguments.rounds)
            table.unlink()
        if arguments.dispatches:
            base = Path(folder, "run_results.db")
            write_rocpd(base, arguments.dispatches)
            compare("rocpd database", base, BARE_SQL, arguments.rounds)


if __name__ == "__main__":
    main()
