"""Record files: what a kill, a full disk, another program or another version leaves behind."""

import os

import msgspec
import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.bench.session import ResultsFolder
from rocattn_profiling.measure.records import append_record, read_records
from rocattn_profiling.measure.settings import Identity

from ..bench.made_records import COMMIT, CONFIG, MACHINE, make_record


class Folder(ResultsFolder):
    """A folder of records of always the same identity."""

    def identity(self):
        """Whose records they are."""
        return Identity(commit=COMMIT, code="c", machine=MACHINE, settings={})

    def keep(self, records):
        """Take none."""


def test_records_come_back_as_they_were_written(tmp_path):
    """One record a line; nothing is rounded or lost."""
    written = [make_record([[1.25, 2.5], [3.0]], backend=name) for name in ("cpu", "cpu-flash")]
    for record in written:
        append_record(tmp_path / "deep" / "records.jsonl", record)
    assert list(read_records(tmp_path / "deep" / "records.jsonl")) == written


@pytest.mark.parametrize("kept", [1, 40, 0.5, -2])
def test_a_record_cut_off_by_a_kill_costs_only_itself(tmp_path, kept):
    """Half a line at the end is passed over, and the next record starts a line of its own."""
    path = tmp_path / "records.jsonl"
    first, lost, last = (make_record([[float(i)]], suite=f"s{i}") for i in range(1, 4))
    append_record(path, first)
    whole = msgspec.json.encode(lost)
    with path.open("ab") as file:
        file.write(whole[: int(kept * len(whole)) if isinstance(kept, float) else kept])
    assert list(read_records(path)) == [first]
    append_record(path, last)
    assert list(read_records(path)) == [first, last]


def test_a_file_of_something_else_is_refused(tmp_path):
    """A line that was never the start of a record names the file and the line."""
    path = tmp_path / "passwd"
    path.write_text("root:x:0:0\n")
    with pytest.raises(RocattnError, match=r"passwd:1 is not a record: is this the right file"):
        list(read_records(path))
    path.write_text('{"a": 1}\n')
    with pytest.raises(RocattnError, match=r"passwd:1 is not a rocattn record: .*missing required field"):
        list(read_records(path))


@pytest.mark.parametrize(("status", "skipped"), [("measured", "no room"), ("failed", ""), ("skipped", "")])
def test_a_status_agrees_with_its_reason(tmp_path, status, skipped):
    """A measured record has no reason, and any other has one: made here, and read from a file."""
    with pytest.raises(ValueError, match=f"status '{status}' contradicts skipped '{skipped}'"):
        make_record([[1.0]], status=status, skipped=skipped)
    path = tmp_path / "records.jsonl"
    stored = msgspec.to_builtins(make_record([[1.0]])) | {"status": status, "skipped": skipped}
    path.write_bytes(msgspec.json.encode(stored))
    with pytest.raises(RocattnError, match=f"records.jsonl:1 is not a rocattn record: status '{status}' contradicts"):
        list(read_records(path))


def test_a_record_of_another_schema_says_which(tmp_path):
    """Records of a future version are not misread."""
    path = tmp_path / "records.jsonl"
    append_record(path, make_record([[1.0]], schema=9))
    with pytest.raises(RocattnError, match="has schema 9, this rocattn reads 1: use the one that wrote it"):
        list(read_records(path))
    text = path.read_text().rpartition(',"checksum"')[0]
    path.write_text(text.replace('"schema":9', f'"schema":{"9" * 3000}') + "}\n")
    with pytest.raises(RocattnError, match=r"has schema 9{39}…, this rocattn reads 1: use the one that wrote it"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seq_q": None}, "seq_q is None: it must be a whole number, 0 or more"),
        ({"causal": "no"}, "causal is 'no': it must be True or False"),
        ({"softcap": "30"}, "softcap is '30': it must be a number, or None"),
        ({"scale": True}, "scale is True: it must be a number, or None"),
        ({"heads": 4}, "unknown fields in a config: heads"),
    ],
)
def test_a_record_whose_config_is_none_names_the_field(tmp_path, change, says):
    """A record is refused where it is read, by file and line, and not where its work is computed."""
    path = tmp_path / "records.jsonl"
    for config in (CONFIG.to_dict(), CONFIG.to_dict() | change):
        append_record(path, msgspec.structs.replace(make_record([[1.0]]), config=config))
    with pytest.raises(RocattnError, match=f"records.jsonl:2 is not a rocattn record: {says}$"):
        list(read_records(path))


def test_a_record_without_a_size_names_what_is_missing(tmp_path):
    """Sizes have no default."""
    path = tmp_path / "records.jsonl"
    config = {name: value for name, value in CONFIG.to_dict().items() if name not in {"seq_k", "head_dim"}}
    append_record(path, msgspec.structs.replace(make_record([[1.0]]), config=config))
    with pytest.raises(RocattnError, match=r"records.jsonl:1 .*: missing fields in a config: seq_k, head_dim$"):
        list(read_records(path))


@pytest.mark.parametrize("sample", [0.0, -1.0, 1e308])
def test_a_time_that_nothing_takes_is_refused(tmp_path, sample):
    """Rates are work over time: 0 would divide, and 31 years are no sample."""
    path = tmp_path / "records.jsonl"
    append_record(path, make_record([[1.0, sample]]))
    with pytest.raises(RocattnError, match=r"records.jsonl:1 is not a rocattn record: .*samples_ns"):
        list(read_records(path))


@pytest.mark.parametrize("line", [msgspec.json.encode(make_record([[1.0]], schema=9)), b'{"a": 1}', b"root:x:0:0"])
def test_a_folder_whose_records_cannot_be_read_says_what_to_do(tmp_path, line):
    """A run into it is refused with the way out, and that way works: the file is put aside as it is."""
    notes = []
    with Folder(tmp_path, fresh=False, on_note=notes.append):
        pass
    (tmp_path / "records.jsonl").write_bytes(line)
    with (
        pytest.raises(RocattnError, match=r"records.jsonl:1 .*; to measure again, move that file aside with --fresh$"),
        Folder(tmp_path, fresh=False, on_note=notes.append),
    ):
        pass
    with Folder(tmp_path, fresh=True, on_note=notes.append):
        pass
    (aside,) = (tmp_path / "older").iterdir()
    assert aside.read_bytes() == line
    assert len(notes) == 1


def test_a_missing_file_is_one_line(tmp_path):
    """Reading what is not there names it."""
    with pytest.raises(RocattnError, match=r"cannot read records from .*none.jsonl: No such file"):
        list(read_records(tmp_path / "none.jsonl"))


def test_a_disk_that_takes_half_a_line_keeps_what_was_there(tmp_path, monkeypatch):
    """A short write is taken back: the file still ends with the last whole record."""
    path = tmp_path / "records.jsonl"
    append_record(path, make_record([[1.0]]))
    before = path.read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[: len(data) // 2]))
    with pytest.raises(RocattnError, match="No space left on device; what was measured before is kept"):
        append_record(path, make_record([[2.0]], suite="other"))
    assert path.read_bytes() == before
