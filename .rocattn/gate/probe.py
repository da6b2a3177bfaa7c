"""Runs inside one revision's environment: reports what that revision plans, allocates and selects for given problems.

A standalone script that uses only the standard library and the revision's rocattn, since only base's code makes base's
plans. Called as ``python -s probe.py REQUEST`` (Python 3.10 or later), where REQUEST is the path of a JSON file that
names the file for the answer. Features that an old revision lacks are left out of the answer and are never an error.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


def main() -> None:
    """Answer every problem of the request."""
    request = json.loads(Path(sys.argv[1]).read_bytes())
    try:
        from rocattn.config import AttentionConfig
    except ImportError as error:
        answer: Answer = {"absent": one_line(error)}
    else:
        answer = {"problems": {}, "absent": ""}
        for key, values in request["problems"].items():
            try:
                config = AttentionConfig.from_dict(values)
            except Exception as error:  # noqa: BLE001 - an old revision may lack an option: then it has no answer
                answer["problems"][key] = {"unknown": one_line(error)}
            else:
                answer["problems"][key] = answer_to(config, request["archs"])
    partial = Path(request["answer"] + ".partial")
    partial.write_text(json.dumps(answer))
    partial.replace(request["answer"])


def answer_to(config: Any, archs: list[str]) -> Answer:
    """Return everything about one problem."""
    return {**selection(config), "plans": {arch: planned(config, arch) for arch in archs}}


def selection(config: Any) -> Answer:
    """Return the registry's choice, and each backend's answer."""
    try:
        from rocattn.backends import BACKENDS
    except ImportError as error:
        return {"selected": "", "why": one_line(error), "backends": {}}
    try:
        selected, why = BACKENDS.select(config).name, ""
    except Exception as error:  # noqa: BLE001 - no able backend is an answer too
        selected, why = "", one_line(error)
    backends = {}
    for backend in BACKENDS:
        try:
            here, able = backend.available(), backend.supports(config)
            usable = bool(here) and bool(able)
            entry: Answer = {
                "available": bool(here), "supports": bool(able), "priority": backend.priority,
                "stand_in": bool(getattr(backend, "is_stand_in", False)),
                "why": "" if usable else (here if not here else able).reason,
            }  # fmt: skip
            # A device's workspaces are part of its plan.
            entry["workspace_bytes"] = backend.workspace_bytes(config) if usable and backend.name != "gpu" else None
        except Exception as error:  # noqa: BLE001 - a broken backend is an answer too
            entry = {"available": False, "supports": False, "priority": 0, "why": one_line(error)}
        backends[backend.name] = entry
    return {"selected": selected, "why": why, "backends": backends}


def planned(config: Any, arch: str) -> Answer:
    """Return the plan of a problem, without the names of code objects, which change with every source change."""
    try:
        from rocattn.gpu.plan import plan
    except ImportError as error:
        return {"absent": one_line(error)}
    try:
        launch_plan = plan(config, arch).as_dict()
    except Exception as error:  # noqa: BLE001 - no plan is an answer too
        return {"problem": one_line(error)}
    keys = ("kernel", "source", "symbol", "defines", "grid", "block", "dynamic_lds_bytes", "args")
    launches = [{key: launch.get(key) for key in keys} for launch in launch_plan["launches"]]
    text = json.dumps([launch_plan["path"], launches, launch_plan.get("workspaces", {})], sort_keys=True)
    for launch in launches:
        del launch["args"]
    return {
        "path": launch_plan["path"], "reason": launch_plan.get("reason", ""), "launches": launches,
        "workspaces": launch_plan.get("workspaces", {}), "hash": hashlib.sha256(text.encode()).hexdigest()[:12],
    }  # fmt: skip


def one_line(error: BaseException) -> str:
    """Return an exception as one line."""
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]


if __name__ == "__main__":
    main()
