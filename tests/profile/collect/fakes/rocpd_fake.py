"""A rocpd database of schema 3, as far as it says what was dispatched and counted, in which process."""

import json
import os
import shlex
import sqlite3
from contextlib import closing

import pretend

GUID = "00003fd6-c565-7565-938c-1314a3ac3a92"
SUFFIX = "_" + GUID.replace("-", "_")


def write(path, found, counters, command, pid):
    """Write the database anew."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as base:

        def table(name, columns, rows):
            base.execute(f'CREATE TABLE "{name}{SUFFIX}" ({columns})')
            for row in rows:
                marks = ", ".join("?" * len(row))
                base.execute(f'INSERT INTO "{name}{SUFFIX}" VALUES ({marks})', row)  # noqa: S608 - names from below
            base.execute(f'CREATE VIEW "{name}" AS SELECT * FROM "{name}{SUFFIX}"')  # noqa: S608 - as above

        table("rocpd_metadata", "id INTEGER PRIMARY KEY, tag TEXT, value TEXT", [
            (1, "schema_version", "3"), (2, "uuid", SUFFIX), (3, "guid", GUID),
        ])  # fmt: skip
        table(
            "rocpd_info_process",
            "id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, ppid INTEGER, pid INTEGER, init BIGINT, fini BIGINT, "
            "start BIGINT, end BIGINT, command TEXT, environment JSONB DEFAULT '{}', extdata JSONB DEFAULT '{}'",
            [(pid, GUID, 1, 1, pid, 1, 2, 1, 2, shlex.join(command), json.dumps(dict(os.environ)), "{}")],
        )
        table(
            "rocpd_info_agent",
            "id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, type TEXT, absolute_index INTEGER, "
            "logical_index INTEGER, type_index INTEGER, uuid INTEGER, name TEXT, model_name TEXT, vendor_name TEXT, "
            "product_name TEXT, user_name TEXT, extdata JSONB",
            [
                (
                    1,
                    GUID,
                    1,
                    pid,
                    "GPU",
                    1,
                    1,
                    0,
                    0,
                    found.arch,
                    "",
                    "AMD",
                    "AMD GPU",
                    "AMD GPU",
                    json.dumps({"num_xcc": 8}),
                )
            ],
        )
        kernels = {name: number for number, (name, *_) in enumerate(pretend.KERNELS, 1)}
        vgprs = {name: rest[3] for name, *rest in pretend.KERNELS}
        table(
            "rocpd_info_kernel_symbol",
            "id INTEGER PRIMARY KEY, guid TEXT, display_name TEXT, arch_vgpr_count INTEGER, accum_vgpr_count INTEGER, "
            "sgpr_count INTEGER",
            [(number, GUID, name, vgprs[name], 0, 112) for name, number in kernels.items()],
        )
        table("rocpd_info_pmc", "id INTEGER PRIMARY KEY, guid TEXT, name TEXT, symbol TEXT", [
            (number, GUID, name, name) for number, name in enumerate(counters, 1)
        ])  # fmt: skip
        made = pretend.dispatches(found)
        table(
            "rocpd_kernel_dispatch",
            "id INTEGER PRIMARY KEY, guid TEXT, nid INTEGER, pid INTEGER, agent_id INTEGER, kernel_id INTEGER, "
            "dispatch_id INTEGER, queue_id INTEGER, start BIGINT, end BIGINT, lds INTEGER, block INTEGER, grid INTEGER",
            [
                (number, GUID, 1, pid, 1, kernels[name], number, 1, start, end, lds, block, grid)
                for number, name, grid, block, lds, _, start, end in made
            ],
        )
        events = [
            (GUID, number, place, pretend.value(counter, number, name, grid, found))
            for number, name, grid, *_ in made
            for place, counter in enumerate(counters, 1)
        ]
        table("rocpd_pmc_event", "guid TEXT, event_id INTEGER, pmc_id INTEGER, value REAL", events)
        base.executescript("""
            CREATE VIEW processes AS SELECT nid, guid, ppid, pid, init, start, end, fini, command
                FROM rocpd_info_process;
            CREATE VIEW kernel_symbols AS SELECT * FROM rocpd_info_kernel_symbol;
            CREATE VIEW kernels AS SELECT d.id, d.guid, d.nid, d.pid, s.display_name AS name, 1 AS agent_abs_index,
                1 AS agent_log_index, d.kernel_id, d.dispatch_id, d.queue_id, d.start, d.end,
                d.end - d.start AS duration, d.grid AS grid_x, 1 AS grid_y, 1 AS grid_z,
                d.block AS workgroup_x, 1 AS workgroup_y, 1 AS workgroup_z,
                d.lds AS lds_size, 0 AS scratch_size, s.arch_vgpr_count AS vgpr_count, s.accum_vgpr_count, s.sgpr_count
                FROM rocpd_kernel_dispatch d JOIN rocpd_info_kernel_symbol s ON s.id = d.kernel_id;
            CREATE VIEW pmc_events AS SELECT e.rowid AS id, e.guid, e.pmc_id, e.event_id, d.nid, d.pid, d.dispatch_id,
                d.start, d.end, d.end - d.start AS duration, p.name AS counter_name, e.value AS counter_value
                FROM rocpd_pmc_event e JOIN rocpd_kernel_dispatch d ON d.id = e.event_id
                JOIN rocpd_info_pmc p ON p.id = e.pmc_id;
        """)
        base.commit()
    pretend.say(f"E20260815 22:01:04.144790 9 output_stream.cpp:111] Opened result file: {path}")
