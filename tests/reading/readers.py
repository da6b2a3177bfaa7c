"""Each reader of foreign files, with whole files of its formats: what it makes of a file is a value or one line.

``make`` writes the whole files into a folder and returns their bytes; compilers and libraries of others may be asked.
``read`` is given another folder, and returns what reads the bytes of a damaged file from it: with rocattn alone.
"""

import json
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from rocattn.errors import RocattnError
from rocattn_profiling.asv.launch import Outcome
from rocattn_profiling.asv.store import AsvStore
from rocattn_profiling.base.journal import append_entry
from rocattn_profiling.gate import noise_record, verdict
from rocattn_profiling.gate.foreign.readers import read_results
from rocattn_profiling.gate.formats import card, junit, markdown, page, sarif, untrusted
from rocattn_profiling.gate.model import BenchmarkHistory, BenchmarkKey, PastSession
from rocattn_profiling.gate.session.store import LaunchLine, LaunchStore
from rocattn_profiling.kernels.foreign import LaunchConfig, NoDeviceCodeError, facts_of_part, parts_of_file
from rocattn_profiling.measure.machine import this_machine
from rocattn_profiling.measure.records import Launch, append_record, read_records
from rocattn_profiling.profile import ingest
from rocattn_profiling.workloads.models import read_model

from ..asv import test_store as stores
from ..bench.made_records import make_record
from ..gate.conftest import make_entry, result_of
from ..gate.foreign.test_readers import CASES
from ..kernels import code_files
from ..profile.ingest import generators as new
from ..profile.ingest import older_generators as old
from ..profile.ingest import sample_generators as samples
from ..profile.ingest import test_kineto as kineto
from ..workloads.test_models import metadata


class Reader(NamedTuple):
    """What makes whole files, and what reads damaged ones."""

    make: Callable[[Path], list[bytes]]
    read: Callable[[Path], Callable[[bytes], object]]


def one_line(text):
    """Hold a line to being one, for people."""
    assert text, "an empty line"
    assert len(text.splitlines()) == 1, repr(text[:400])
    assert "report this file" not in text, text
    assert len(text) < 2000, f"a line of {len(text)}"


def _refused(call, *errors):
    try:
        call()
    except (RocattnError, *errors) as error:
        one_line(str(error))


def _profile(path, data):
    path.write_bytes(data)
    problems = []

    def read():
        found = ingest.read([path])
        problems.extend(map(str, found.problems))
        ingest.describe([path])

    _refused(read)
    for problem in problems:
        one_line(problem)


def _profiles(*writers):
    """Return what makes a reader of a profiler's files: ``writers`` write one each."""

    def make(folder):
        files = []
        for number, (name, write) in enumerate(writers):
            path = folder / f"{number}" / name
            path.parent.mkdir()
            files.append((write(path) or path).read_bytes())
        return files

    return Reader(make, lambda folder: partial(_profile, folder / writers[0][0]))


MADE = new.launches(3)
KEY = BenchmarkKey(label="a", version="1", python="3.11", sample_ns=1, budget_ns=2)
_CSV = _profiles(
    ("a_counter_collection.csv", lambda path: new.v3_counters(path, MADE)),
    ("a_kernel_trace.csv", lambda path: new.v3_trace(path, MADE)),
    ("a_agent_info.csv", new.v3_agents),
    ("a_kernel_stats.csv", lambda path: new.v3_stats(path, MADE)),
    ("results.csv", lambda path: old.v1(path, MADE)),
    ("results.csv", lambda path: old.v2(path, MADE)),
    ("pmc_perf.csv", lambda path: old.merged(path, MADE, [("SQ_WAVES",), ("GRBM_GUI_ACTIVE", "TCC_HIT_sum")])),
    ("a.csv", lambda path: old.compute_long(path, MADE)),
    ("a_pc_sampling_stochastic.csv", samples.csv),
    ("a_pc_sampling_host_trap.csv", lambda path: samples.csv(path, stochastic=False)),
    ("stats.csv", lambda path: samples.stats_csv(path.parent)),
)
_JSON = _profiles(
    ("a_results.json", lambda path: new.v3_json(path, MADE)),
    ("a_results.json", lambda path: samples.v3_json(path, made=MADE)),
    ("results.json", lambda path: old.chrome(path, MADE)),
    ("code.json", lambda path: samples.code_json(path.parent)),
    ("k.pt.trace.json", lambda path: kineto.trace(path, [kineto.CPU, *kineto.launch(0), *kineto.launch(1)])),
)
_ROCPD = _profiles(
    ("a.db", lambda path: new.rocpd(path, MADE)),
    ("a.db", lambda path: new.rocpd(path, MADE, schema=4)),
    ("a.db", lambda path: samples.rocpd(path, MADE)),
)


def _read_code(path, data):
    path.write_bytes(data)
    try:
        parts, problems = parts_of_file(path, LaunchConfig())
    except NoDeviceCodeError as error:
        one_line(str(error))
        return
    for part in parts:
        problems += facts_of_part(part)[1]
    for problem in problems:
        one_line(str(problem))


def _code(kinds):
    def make(folder):
        compiler = code_files.pinned()
        made = {}
        for target in ("gfx90a", "gfx1100"):
            made[target], made["text"] = code_files.compile_text(compiler.argv, compiler.linker, folder, target)
        made["text"] = made["text"].encode()
        fat = code_files.bundle({f"hip-amdgcn-amd-amdhsa--{t}": made[t] for t in ("gfx90a", "gfx1100")}, align=64)
        made |= {
            "bundle": fat, "compressed": code_files.compressed(fat, 2),
            "stored": code_files.compressed(fat, 3, content=zlib.compress(fat, level=0)),
            "host": code_files.host_object(folder, fat),
            "archive": code_files.archive({"a.o": code_files.host_object(folder, fat), "b.hsaco": made["gfx90a"]}),
        }  # fmt: skip
        return [made[kind] for kind in kinds]

    name = "damaged.s" if kinds == ("text",) else "damaged.hsaco"
    return Reader(make, lambda folder: partial(_read_code, folder / name))


def _models(folder):
    gguf = pytest.importorskip("gguf")
    files = []
    for architecture in ("llama", "gemma2", "gpt-oss"):
        path = folder / f"{architecture}.gguf"
        file = gguf.GGUFWriter(path, architecture)
        file.add_array("tokenizer.ggml.tokens", ["a", "b"])
        for key, value in list(metadata(architecture, attention__sliding_window=128).items())[1:]:
            file.add_uint32(key, value)
        file.add_array(f"{architecture}.attention.head_count_kv", [2, 2, 1, 2])
        file.write_header_to_file()
        file.write_kv_data_to_file()
        file.close()
        files.append(path.read_bytes())
    return files


def _records(folder):
    path = folder / "records.jsonl"
    for backend in ("cpu", "cpu-flash"):
        append_record(path, make_record([[1e6, 2e6]], backend=backend))
    return [path.read_bytes()]


def _launches(folder):
    outcome = Outcome(
        status="ok", canary_ns=2.0, canary_of="3", launch=Launch(start_ns=1, pos=0, number=3, samples_ns=[1.0, 2.0])
    )
    store = LaunchStore(folder / "launches.jsonl", "k")
    for round_ in range(3):
        append_entry(store.path, LaunchLine(kind="launch", label="a", round=round_, outcome=outcome))
    return [store.path.read_bytes()]


def _verdicts(_folder):
    entries = [
        make_entry("b.C.time_slow", "regression", 1.31, reason="x\ny", traceback="t"),
        make_entry("b.C.time_open", "inconclusive", 1.04), make_entry("b.C.time_fine", "pass"),
        make_entry("b.C.time_lost", "failed", reason="r"),
    ]  # fmt: skip
    return [verdict.to_json(result_of.__wrapped__()(entries)).encode()]


def _show(path):
    _refused(lambda: markdown.comment(untrusted.read(path)))

    def forms():
        result = verdict.read(path)
        card.text(result)
        for form in (markdown.comment, markdown.summary, page.html, sarif.to_sarif, junit.to_xml):
            form(result)

    _refused(forms)


def _results(_folder):
    texts = [content if isinstance(content, str) else json.dumps(content) for content, *_ in CASES.values()]
    return [text.encode() for text in texts]


def _noise(_folder):
    past = PastSession(start_us=1.0, samples=3, wall=[1.0, 2.0, 3.0], cpu=[1.0, 2.0, 3.0])
    history = [BenchmarkHistory(key=KEY, sessions=[past])]
    machine = noise_record.recorded_machine(this_machine())
    return [msgspec.json.encode(noise_record.NoiseRecord(machine=machine, benchmarks=history))]


def _read_noise(path):
    told = noise_record.known(path, this_machine(), [KEY]).source.why_not
    if told:
        one_line(told)


def _store(folder):
    store = AsvStore(folder)
    stores.add(store, {(0, 0): [1.0, 1.5], (1, 1): 2.0, (0, 1): None})
    (path,) = store.result_files()
    return store, path


def _read_store(folder):
    store, path = _store(folder)

    def read(data):
        path.write_bytes(data)
        _refused(lambda: list(store.read(on_problem=one_line)))

    return read


def _from_file(name, call):
    """Return what makes a reader in a folder: it writes the bytes to a file of this name, which ``call`` is given."""

    def make(folder):
        def read(data):
            (folder / name).write_bytes(data)
            call(folder / name)

        return read

    return make


def _refusing(call):
    return lambda path: _refused(lambda: call(path))


READERS = {
    "code objects": _code(("gfx90a", "gfx1100")),
    "bundles": _code(("bundle", "compressed", "stored", "host", "archive")),
    "assembly": _code(("text",)),
    "csv": _CSV,
    "json": _JSON,
    "rocpd": _ROCPD,
    "gguf": Reader(_models, _from_file("a.gguf", _refusing(lambda path: [*read_model(path).configs(4, 4)]))),
    "records": Reader(_records, _from_file("a.jsonl", _refusing(lambda path: list(read_records(path))))),
    "launches": Reader(
        _launches, _from_file("a-k.jsonl", _refusing(lambda path: LaunchStore(path.with_name("a.jsonl"), "k")))
    ),
    "verdicts": Reader(_verdicts, _from_file("verdict.json", _show)),
    "results": Reader(_results, _from_file("results", _refusing(read_results))),
    "noise": Reader(_noise, _from_file("noise.json", _read_noise)),
    "asv": Reader(lambda folder: [_store(folder)[1].read_bytes()], _read_store),
}
