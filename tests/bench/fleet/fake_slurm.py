# ruff: noqa: D103 - the names say it
"""A Slurm of one file, for tests: jobs run at once as processes, on two nodes in turns, unless a state is planned.

``FAKE_SLURM`` is its folder: ``plan.json`` maps a job's number to the state it is to have without ever running,
"refuse" has sbatch refuse, "silent" has squeue fail, "accounts" is what sacct knows; ``asked`` keeps every command.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(os.environ["FAKE_SLURM"])


def plan():
    path = ROOT / "plan.json"
    return json.loads(path.read_text()) if path.exists() else {}


def jobs():
    return sorted(ROOT.glob("job-*"), key=lambda path: int(path.name[4:]))


def sbatch(script):
    if "refuse" in plan():
        sys.exit("sbatch: error: invalid partition specified: nowhere\nsbatch: error: Batch job submission failed")
    number = len(jobs()) + 1
    job = ROOT / f"job-{number}"
    job.mkdir()
    text = Path(script).read_text()
    (job / "script").write_text(text)
    if str(number) not in plan():
        out, err = (re.search(rf"--{name}=(\S+)", text)[1].replace("%j", str(number)) for name in ("output", "error"))
        env = os.environ | {
            "SLURM_JOB_ID": str(number), "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_JOB_NUM_NODES": "1",
            "SLURMD_NODENAME": f"n{1 + number % 2}",
        }  # fmt: skip
        with Path(out).open("a") as stdout, Path(err).open("a") as stderr:
            runner = 'bash "$1"; echo $? > "$2.part"; mv "$2.part" "$2"'
            command = ["bash", "-c", runner, "run", str(job / "script"), str(job / "status")]
            process = subprocess.Popen(command, env=env, stdout=stdout, stderr=stderr, start_new_session=True)
        (job / "pid").write_text(str(process.pid))
    print(f"Submitted batch job {number}")


def state(job):
    planned = plan().get(job.name[4:])
    if planned:
        return planned
    if (job / "cancelled").exists():
        return "CANCELLED|None"
    if not (job / "status").exists():
        return "RUNNING|None"
    return ("COMPLETED" if (job / "status").read_text().strip() == "0" else "FAILED") + "|None"


def squeue(*words):
    if "silent" in plan():
        print("1|COMPLETED|None")
        sys.exit("slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
    if "--noheader" not in words:
        print("JOBID|STATE|REASON")
    for job in jobs():
        if state(job) != "gone" and ("--states=all" in words or state(job).startswith(("PENDING", "RUNNING"))):
            print(f"{job.name[4:]}|{state(job)}")


def sacct(*words):
    if "accounts" not in plan():
        sys.exit("Slurm accounting storage is disabled")
    if "--noheader" not in words:
        print("State")
    print(plan()["accounts"])


def scancel(number):
    job = ROOT / f"job-{number}"
    (job / "cancelled").touch()
    if (job / "pid").exists() and not (job / "status").exists():
        os.killpg(int((job / "pid").read_text()), signal.SIGTERM)


if __name__ == "__main__":
    with (ROOT / "asked").open("a") as file:
        file.write(" ".join(sys.argv[1:]) + "\n")
    {"sbatch": sbatch, "squeue": squeue, "scancel": scancel, "sacct": sacct}[sys.argv[1]](*sys.argv[2:])
