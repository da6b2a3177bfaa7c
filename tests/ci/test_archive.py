"""The archive of ``rocattn ci --gpu``: what was measured, what was not, and nothing of whose machine it is."""

import csv
import io
import json
import os
import platform
import tarfile
from pathlib import Path

import msgspec
import pytest
from inline_snapshot import snapshot

from rocattn import AttentionConfig
from rocattn.gpu.plan import plan
from rocattn_profiling import cli
from rocattn_profiling.ci import archive, card, known
from rocattn_profiling.ci import command as ci
from rocattn_profiling.measure.records import append_record
from rocattn_profiling.profile.collect import find

from ..made_reports import MACHINE, make_record
from ..profile.collect.conftest import machine  # noqa: F401 - the fixture
from ..screens import line

HOST, USER, SECRET = "node-17.example.org", "zoë_s", "hunter2-and-more"
CONFIG = AttentionConfig(
    batch=1, num_heads=8, seq_q=512, seq_k=512, head_dim=128, num_kv_heads=2, dtype="float16", causal=True
)
KERNELS = [["__amd_rocclr_fillBuffer", 8192, 256, 0, 16], [known.KERNEL, 131072, 128, 16384, 96],
           ["flash_decode", 4096, 64, 0, 24]]  # fmt: skip
DOCTOR = {"checks": [{"group": "gpu", "name": "device 0", "status": "ok", "detail": "AMD Radeon RX 7900 XT"}]}


@pytest.fixture
def private(monkeypatch, tmp_path):
    """What an archive may not have: names, a home with a blank, folders, a secret; set as this process's own."""
    home = tmp_path / "home of" / USER
    work = tmp_path / "srv" / "project x"
    for folder in (home, work):
        folder.mkdir(parents=True)
    monkeypatch.setattr(platform, "node", lambda: HOST)
    for name, value in {"HOME": str(home), "USER": USER, "LOGNAME": USER, "HF_TOKEN": SECRET}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(work)
    return [HOST, "node-17", USER, SECRET, str(home), str(work), str(tmp_path), "/opt/secret-place"]


@pytest.fixture
def job(machine, private, monkeypatch):  # noqa: F811
    """Commands that write each step's files as it does, with every private text in each; rocprofv3 is the fake."""
    machine.install("rocprofv3")
    (machine.bin.parent / "lib").mkdir()
    (machine.bin.parent / "lib/librocprof-trace-decoder.so").touch()
    machine.set(kernels=KERNELS)
    statuses = {}
    monkeypatch.setattr(archive, "_doctor", lambda _arguments: plant(DOCTOR, private))
    monkeypatch.setattr(known, "commands", lambda out, _arch: [
        ["profile", *options, "--out", str(out / name), "--", str(machine.app), *private[:3]]
        for name, options in (("profile", []), ("trace", ["--thread-trace", "--kernel", known.KERNEL]))
    ])  # fmt: skip

    def command(arguments):
        out = Path(arguments[arguments.index("--out") + 1]) if "--out" in arguments else Path()
        if statuses.get(arguments[0]):
            return statuses[arguments[0]]
        if arguments[0] == "profile":
            status = cli.main(arguments)
            for path in (path for path in out.rglob("*") if path.suffix in {".csv", ".json", ".jsonl"}):
                path.write_text(planted(path, private))
            return status
        texts = {
            "verify": ("verify.json", json.dumps(plant(dict.fromkeys(archive._OF_VERIFY, 1), private))),
            "kernels": ("comparison.json", json.dumps(plant({"kernels": 12}, private))),
        }
        if arguments[0] == "bench":
            bench(out, private)
        elif arguments[0] in texts:
            name, text = texts[arguments[0]]
            out.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(text)
        return 0

    monkeypatch.setattr(ci, "_run_command", command)
    monkeypatch.setattr(ci, "why_no_audit", lambda: None)
    return machine, statuses


def bench(out, private):
    """Write records of a GPU with private texts in every free field."""
    words = " ".join(private)
    record = make_record(CONFIG, "gpu", time_ns=50e3)
    commit = msgspec.structs.replace(record.commit, subject=words)
    of_host = msgspec.structs.replace(MACHINE, name=words, os=words, driver=words)
    append_record(out / "records.jsonl", msgspec.structs.replace(record, commit=commit, machine=of_host, host=HOST))
    failed = make_record(CONFIG, "cpu", launches=[], check=None, status="failed", skipped=f"crashed in {words}")
    append_record(out / "records.jsonl", failed)


def plant(value, private):
    """Return a JSON object with private texts as values and below a key that is one."""
    return value | {
        "checks": value.get("checks", []),
        "error": " and ".join(private),
        **{word: [word] for word in private},
    }


def planted(path, private):
    """Return a file's text with private texts in each cell of a row, or in its JSON."""
    text = path.read_text()
    if path.suffix == ".csv":
        columns = len(text.splitlines()[0].split(","))
        rows = io.StringIO()
        for word in private:
            csv.writer(rows).writerow([f"in {word}:12"] * columns)
        return text.rstrip("\n") + "\n" + rows.getvalue()
    if path.suffix == ".jsonl":
        return text + json.dumps({"private": private}) + "\n"
    value = json.loads(text)
    if path.name == "profile.json":
        return json.dumps(value | {"notes": private, "stopped": private[0]})
    return json.dumps(plant(value, private))


def members(out):
    """Return the archive's files by name; whom they say they are of is checked."""
    with tarfile.open(out / archive.ARCHIVE) as packed:
        found = {}
        for member in packed:
            assert (member.uid, member.gid, member.uname, member.gname, member.mtime) == (0, 0, "", "", 0)
            found[member.name.removeprefix("rocattn-gpu/")] = packed.extractfile(member).read().decode()
        return found


def run(*options):
    """Run the job about a GPU without the steps whose files are not packed."""
    job = ["--gpu", "--out", "o", "--skip", "gate", "report", "site", *options]
    return ci.run(cli.parser_for("ci").parse_args(job))  # so that a bug is an error here, and no status


def test_nothing_in_the_archive_tells_whose_machine_it_was(job, private):
    """Every kind of file that the steps write has all of it; the archive none, and the measurements."""
    run()
    found = members(Path("o"))
    kinds = {
        "SUMMARY.md", "doctor.json", "beside.json", "verify/verify.json", "bench/records.jsonl",
        "audit/comparison.json", "known/profile/profile.json",
        "known/trace/passes/thread-trace/raw/stats_ui_output_agent_45661_dispatch_2.csv",
        "known/trace/passes/thread-trace/raw/ui_output_agent_45661_dispatch_2/code.json",
        "known/trace/passes/thread-trace/raw/ui_output_agent_45661_dispatch_2/se0_sm1_sl0_wv0.json",
    }  # fmt: skip
    assert kinds <= found.keys()
    assert not [name for name in found if Path(name).suffix not in {".md", ".json", ".jsonl", ".csv"}]
    everything = "\n".join([*found, *found.values()])
    for text in (*private, json.dumps(USER)[1:-1]):
        assert text not in everything, text
    raw = (Path("o") / archive.ARCHIVE).read_bytes()
    assert not [text for text in private if text.encode() in raw[:300]], "gzip's own header has no name"


def test_what_was_measured_is_in_the_archive_unchanged(job):
    """Counters, times and cycles, with the kernels' names."""
    run()
    found = members(Path("o"))
    for path in Path("o/known").rglob("raw/*.csv"):
        packed = list(csv.reader(found[path.relative_to("o").as_posix()].splitlines()))
        written = list(csv.reader(path.read_text().splitlines()))
        assert len(packed) == len(written)
        for row, own in zip(packed, written, strict=True):
            for cell, was in zip(row, own, strict=True):
                assert cell == was or not was.replace(".", "").isdigit(), (path, was)
    stats = found["known/trace/passes/thread-trace/raw/stats_ui_output_agent_45661_dispatch_2.csv"]
    assert "s_waitcnt vmcnt(0),8,9600,9568,64" in stats
    assert known.KERNEL in stats
    (record, *_) = found["bench/records.jsonl"].splitlines()
    assert json.loads(record)["launches"] == msgspec.to_builtins(make_record(CONFIG, "gpu", time_ns=50e3).launches)


@pytest.mark.parametrize(
    ("breaks", "status", "said"),
    [
        ({"decoder": False}, 3, "pass thread-trace (known)"), ({"release": "6.4.0"}, 3, "trace (known)"),
        ({"fails": "refuses the trace"}, 3, "pass thread-trace (known)"), ({"bench": 3}, 3, "bench: not measured"),
        ({"doctor": 4}, 4, "known: there is no GPU to measure on"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said_and_is_no_pass(job, breaks, status, said, capsys):
    """And the rest is in the archive."""
    fake, statuses = job
    statuses |= {name: code for name, code in breaks.items() if name in {"bench", "doctor"}}
    if "decoder" in breaks:
        (fake.bin.parent / "lib/librocprof-trace-decoder.so").unlink()
    fake.set(**{name: text for name, text in breaks.items() if name in {"release", "fails"}})
    if "release" in breaks:
        (fake.bin.parent / ".info").mkdir()
        (fake.bin.parent / ".info/version").write_text("6.4.0-1\n")
    assert run() == status
    found = members(Path("o"))
    assert said in found["SUMMARY.md"].partition("## Not measured")[2]
    assert ("known/profile/profile.json" in found) == ("doctor" not in breaks)
    assert "PASS" not in capsys.readouterr().out


def test_an_earlier_job_is_not_packed(job):
    """Its files are still in the folder."""
    run()
    for path in Path("o").rglob("*"):
        os.utime(path, (1, 1))
    run("bench", "known")
    found = members(Path("o"))
    assert "verify/verify.json" in found
    assert not [name for name in found if name.startswith(("bench/", "known/"))]
    assert json.loads(found["beside.json"]) == []
    assert line(found["SUMMARY.md"], "known: ") == "- known: asked for by --skip"


def test_an_archive_that_cannot_be_written_loses_no_result(job, capsys):
    """The job says so, and is not a pass."""
    (Path("o") / archive.ARCHIVE).mkdir(parents=True)
    assert run() == 3
    why = f"cannot write {Path.cwd() / 'o' / archive.ARCHIVE}: Is a directory"
    assert line(capsys.readouterr().err, "packed") == f"what was measured is not packed: {why}"
    assert Path("o/bench/records.jsonl").exists()


def test_the_traced_kernel_is_the_known_program_s(monkeypatch):
    """Its prompt runs it once a call, on every architecture; both calls ask for the GPU."""
    calls = []
    monkeypatch.setattr("rocattn.attention", lambda q, k, v, **options: calls.append((q, k, v, options)))
    known.main()
    assert [options for *_, options in calls] == [{"causal": True, "backend": "gpu"}, {"backend": "gpu"}] * 3
    for arch in ("gfx90a", "gfx942", "gfx950", "gfx1030", "gfx1100", "gfx1201"):
        kernels = []
        for q, k, _, options in calls[:2]:
            config = AttentionConfig(
                batch=q.shape[0], num_heads=q.shape[2], seq_q=q.shape[1], seq_k=k.shape[1], head_dim=q.shape[3],
                num_kv_heads=k.shape[2], dtype="float16", causal=options.get("causal", False),
            )  # fmt: skip
            kernels.append([launch.kernel for launch in plan(config, arch).launches])
        assert kernels[0] == [known.KERNEL]
        assert known.KERNEL not in kernels[1]


def test_the_audit_stands_beside_the_measured_time():
    """Of the very variant that ran; one that was not audited says so instead of a number."""
    from rocattn_profiling.kernels.facts import KernelFacts, Spills
    from rocattn_profiling.kernels.shipped import Shipped

    (launch,) = plan(CONFIG, "gfx1100").launches
    of = Shipped(
        kernel=launch.kernel, source=launch.source, symbol=launch.symbol, defines=launch.defines, arch="gfx1100"
    )
    facts = KernelFacts(
        kernel=of.kernel, variant=of.variant, choices=of.choices, arch="gfx1100", target="gfx1100", symbol=of.symbol,
        file=of.source, wave_size=32, block=128, vgprs=243, agprs=0, sgprs=40, spills=Spills(vgprs=2, sgprs=0),
        scratch_bytes=8, lds_bytes=0, kernarg_bytes=96, code_bytes=4096,
    )  # fmt: skip
    timed = make_record(CONFIG, "gpu", time_ns=50e3)
    other = msgspec.structs.replace(timed, machine=msgspec.structs.replace(MACHINE, gfx="sm_90"))
    rows = known.beside([timed, make_record(CONFIG, "cpu"), other], [facts])
    assert [(row["arch"], row.get("vgprs"), row.get("vgpr_spills")) for row in rows] == [
        ("gfx1100", 243, 2), ("sm_90", None, None),
    ]  # fmt: skip
    assert 50e3 <= rows[0]["time_ns"] <= 51e3
    assert rows[1]["not_audited"]
    assert known.beside([timed], [])[0]["not_audited"] == "the audit of this job has no such kernel"


def test_a_gpu_that_is_not_timed_is_no_pass(job):
    """Verify and bench name it: their defaults pass without a GPU."""
    run()
    steps = {step["name"]: step["commands"] for step in json.loads(Path("o/ci.json").read_text())["steps"]}
    for name in ("verify", "bench"):
        ((*_, command),) = [steps[name]]
        assert command[command.index("--backend") + 1] == "gpu"
        assert cli.parser_for(name).parse_args(command[1:]).backend == ["gpu"]


def test_only_a_job_about_a_gpu_has_the_step_and_the_archive(job):
    """Without --gpu neither is there, and nothing says that it is missing."""
    cli.main(["ci", "--out", "o", "--skip", "gate", "report", "site"])
    assert not (Path("o") / archive.ARCHIVE).exists()
    assert card.OF_GPU not in [step["name"] for step in json.loads(Path("o/ci.json").read_text())["steps"]]


def test_without_a_profiler_the_known_program_is_not_measured(job, monkeypatch):
    """It is what --gpu is for: the job is no pass."""
    monkeypatch.setattr(find, "find_profilers", list)
    assert run() == 3
    told = line(members(Path("o"))["SUMMARY.md"], "known: ")
    assert told == snapshot("- known: no profiler is installed (rocattn doctor says how to get one)")
