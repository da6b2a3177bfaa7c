"""Where `report` and `site` find what other commands wrote: records, and the gate's verdict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rocattn_profiling.base.status import CommandError

if TYPE_CHECKING:
    from rocattn_profiling.gate.verdict import GateResult
    from rocattn_profiling.measure.records import Record

RECORDS = "records.jsonl"


def find_records(given: str | None, default: Path, notes: list[str]) -> list[Record]:
    """Return the records of a file, or of every record file below a folder.

    A folder without any is noted, not an error: an earlier step may have been skipped. A named file must be there.

    Raises:
        RocattnError: When a file cannot be read.
    """
    from rocattn_profiling.measure.records import read_records

    place = Path(given) if given else default
    if place.suffix in {".jsonl", ".json"} or place.is_file():
        return list(read_records(place))
    files = sorted(place.rglob(RECORDS)) if place.is_dir() else []
    if given and not files:
        notes.append(f"no {RECORDS} in {place}")
    return [record for path in files for record in read_records(path)]


def find_verdict(given: str | None, default: Path, notes: list[str]) -> GateResult | None:
    """Return the gate's verdict from a file or a folder; a folder without one is noted.

    Raises:
        RocattnError: When a named file is missing or is not a verdict.
    """
    from rocattn_profiling.gate.verdict import FILE, read

    place = Path(given) if given else default
    path = place if place.suffix == ".json" else place / FILE
    if not path.exists() and path is not place:
        if given:
            notes.append(f"no {FILE} in {place}")
        return None
    if not path.exists():
        raise CommandError(f"{path} does not exist: run `rocattn gate run` first, or name its folder")
    return read(path)
