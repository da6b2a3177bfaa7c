"""What a job of a fleet does on its node: measure one unit into the unit's own folder, as `rocattn bench` would.

The call comes through submitit; what is to be measured comes as ``task.json`` and leaves as ``measured.jsonl``, so that
the submitter needs nothing but files to take it over, also after it was killed. A job that is started again on the same
node goes on with what is there; on another node it measures everything anew.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import rocattn
from rocattn.config import AttentionConfig
from rocattn.errors import RocattnError
from rocattn_profiling.base.files import write_text
from rocattn_profiling.bench.session import BenchSession, Facts
from rocattn_profiling.measure.records import Commit  # noqa: TC001 - msgspec reads the annotation at run time
from rocattn_profiling.measure.settings import Settings, code_hash

if TYPE_CHECKING:
    from types import FrameType

TASK, DONE = "task.json", "done.json"
GPUS = "ROCR_VISIBLE_DEVICES"
_OTHER_FILTERS = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """A unit: what is compared or added up, and is therefore measured by one job.

    Attributes:
        suite, backends: As in the records.
        configs: Each as `AttentionConfig.to_dict`, with the `Facts` of the same place.
        settings, commit: As the submitter's.
        code: Hash of the source text that is to be measured.
        library: Folder that rocattn must be imported from.
        gpus: What the job is to see of its machine's GPUs, as ROCR_VISIBLE_DEVICES; "" where the cluster says it.
        named: Whether records say which node they are of.
    """

    suite: str
    backends: list[str]
    configs: list[dict[str, Any]]
    facts: list[Facts]
    settings: Settings
    commit: Commit | None
    code: str
    library: str
    gpus: str = ""
    named: bool = True


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What a job that came to its end leaves: the node, and how many lines of records there are."""

    host: str
    records: int


class UnitSession(BenchSession):
    """A session in a unit's folder, which says of its records what the task says."""

    file = "measured.jsonl"  # reports look for records.jsonl, and these are not all of them

    def __init__(self, folder: Path, task: Task) -> None:
        super().__init__(folder, task.settings)
        self.commit = task.commit
        self.host = node_name() if task.named else ""


def perform(folder: str) -> None:
    """Measure the unit of a folder.

    Raises:
        RocattnError: When this is not the code that was submitted, or the folder is in use.
    """
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, _ended)
    place = Path(folder)
    task = msgspec.json.decode((place / TASK).read_bytes(), type=Task)
    see_own_gpus(task.gpus)
    library = str(Path(str(rocattn.__file__)).resolve().parent)
    if library != task.library:
        raise RocattnError(f"the job imported rocattn from {library}, not from {task.library}")
    with UnitSession(place, task) as session:
        if code_hash(task.settings.backend_module) != task.code:
            raise RocattnError("the source changed after the job was submitted: run the command again")
        for values, facts in zip(task.configs, task.facts, strict=True):
            session.measure(task.suite, AttentionConfig.from_dict(values), task.backends, facts)
        done = Done(host=node_name(), records=len(session.path.read_bytes().splitlines()))
    write_text(place / DONE, msgspec.json.encode(done).decode() + "\n")


def _ended(number: int, _frame: FrameType | None) -> None:
    """End the job as its cluster asks, at once: the sampling processes got the signal too, and their backend none."""
    sys.exit(f"the job got {signal.Signals(number).name}: its time was over, or it was cancelled")


def node_name() -> str:
    """Return the node's name, as the cluster knows it where it says so."""
    return os.environ.get("SLURMD_NODENAME") or platform.node()


def see_own_gpus(gpus: str) -> None:
    """Leave one filter of GPUs in the environment of this process and its children.

    ROCR_VISIBLE_DEVICES renumbers what is left from 0, and HIP then applies its own three filters to the new numbers.
    Slurm (without a GPU type in its configuration) and submitit set several of them to the same old number, which
    hides every GPU but the first.
    """
    if gpus:
        os.environ[GPUS] = gpus
    if os.environ.get(GPUS):
        for name in _OTHER_FILTERS:
            os.environ.pop(name, None)
