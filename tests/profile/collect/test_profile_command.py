"""``rocattn profile``: what it prints where, and its exit statuses."""

import json

import pytest
from inline_snapshot import snapshot

from rocattn_profiling import cli
from rocattn_profiling.profile.collect import store

from ...screens import line, screen


@pytest.fixture(autouse=True)
def _here(machine, monkeypatch):
    """Run in the machine's folder: the default output folder is there."""
    monkeypatch.chdir(machine.root)


def test_a_dry_run_needs_neither_gpu_nor_profiler(machine, capsys):
    """The command lines are on stdout, ready for a shell; nothing is written."""
    machine.gpus()
    assert cli.main(["profile", "--dry-run", "--arch", "gfx1100", "--tool", "rocprofv3@6.2", "--", "./app", "a b"]) == 0
    out, err = capsys.readouterr()
    lines = [line for line in out.splitlines() if not line.startswith("#")]
    assert len(lines) == 3
    assert all(line.startswith("ROCPROF_TMPDIR=") and line.endswith("-- ./app 'a b'") for line in lines)
    assert [each for each in out.splitlines() if each.startswith("#")] == snapshot(
        [
            "# timing: kernel trace, no counters",
            (
                "# counters-1: GRBM_GUI_ACTIVE SQ_WAVES SQ_WAVE_CYCLES SQ_BUSY_CYCLES GRBM_COUNT GL2C_EA_RDREQ_32B_sum "
                "GL2C_EA_RDREQ_64B_sum GL2C_EA_RDREQ_96B_sum GL2C_EA_RDREQ_128B_sum SQC_LDS_BANK_CONFLICT "
                "SQC_LDS_IDX_ACTIVE SQ_INSTS_LDS SQ_INSTS_VALU"
            ),
            (
                "# counters.txt: pmc: GRBM_GUI_ACTIVE SQ_WAVES SQ_WAVE_CYCLES SQ_BUSY_CYCLES GRBM_COUNT "
                "GL2C_EA_RDREQ_32B_sum GL2C_EA_RDREQ_64B_sum GL2C_EA_RDREQ_96B_sum GL2C_EA_RDREQ_128B_sum "
                "SQC_LDS_BANK_CONFLICT SQC_LDS_IDX_ACTIVE SQ_INSTS_LDS SQ_INSTS_VALU"
            ),
            (
                "# counters-2: GRBM_GUI_ACTIVE SQ_WAVES GL2C_MC_WRREQ_sum GL2C_EA_WRREQ_64B_sum GL2C_HIT_sum "
                "GL2C_MISS_sum SQ_WAIT_ANY SQ_WAIT_INST_ANY SQ_WAVE_CYCLES"
            ),
            (
                "# counters.txt: pmc: GRBM_GUI_ACTIVE SQ_WAVES GL2C_MC_WRREQ_sum GL2C_EA_WRREQ_64B_sum GL2C_HIT_sum "
                "GL2C_MISS_sum SQ_WAIT_ANY SQ_WAIT_INST_ANY SQ_WAVE_CYCLES"
            ),
        ]
    )
    assert screen(err) == snapshot("""\
rocprofv3 (ROCm 6.2) at rocprofv3: assumed for the dry run
note: L2 counters of gfx1100 are reported broken (ROCm/rocm-systems 2352); AMD does not test gfx1101 and gfx1102\
""")
    assert not (machine.root / "out").exists()


@pytest.mark.parametrize(
    ("rocm", "option"), [("7.0", "-p"), ("7.13", "-p"), ("7.14", "--output-directory"), ("10.2", "--output-directory")]
)
def test_a_dry_run_of_rocprof_compute_is_that_release_s(machine, capsys, rocm, option):
    """7.14 removed -p; what it counts is its own choice."""
    del machine
    words = ["--dry-run", "--arch", "gfx942", "--tool", f"rocprof-compute@{rocm}", "--", "./app"]
    assert cli.main(["profile", *words]) == 0
    comment, line = capsys.readouterr().out.splitlines()
    assert comment == "# workload: its own counters"
    assert line.partition(" rocprof-compute ")[2].split()[:4] == ["profile", "-n", "rocattn", option]


def test_a_dry_runs_command_lines_are_those_that_are_run(machine, capsys):
    """The shown arguments are the profiler's arguments."""
    path = machine.install("rocprofv3")
    words = ["--metrics", "lds", "caches", "--json", "--", str(machine.app), "--x"]
    assert cli.main(["profile", "--dry-run", *words]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert cli.main(["profile", *words]) == 0
    assert [[path, *call["argv"]] for call in machine.called()] == [one["argv"] for one in planned["passes"]]


def test_options_after_the_double_dash_are_the_commands(capsys):
    """Ours end at the first --; a second one, and options of our names, belong to the command."""
    words = ["--dry-run", "--arch", "gfx942", "--metrics", "lds", "--", "./app", "--json", "--debug", "--", "x"]
    assert cli.main(["profile", *words]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert all(line.endswith(" -- ./app --json --debug -- x") for line in lines)


def test_json_is_alone_on_stdout_and_equals_profile_json(machine, capsys):
    """Tables and progress go to stderr."""
    machine.install("rocprofv3")
    assert cli.main(["profile", "--json", "--metrics", "lds", "--", str(machine.app)]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told == json.loads((machine.root / "out/profile/profile.json").read_text())
    assert (told["complete"], told["wanted"], told["arch"]) == (True, ["lds"], "gfx942")
    assert "counters-1" in err
    assert "2 of 2 passes measured" in err
    assert err.splitlines()[-1] == "next: rocattn report out/profile"


def test_no_profiler_is_one_line_and_status_3(machine, capsys):
    """Nothing was measured, and what to install is said."""
    assert cli.main(["profile", "--", str(machine.app)]) == 3
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert "install rocprofiler-sdk" in err


def test_a_partial_measurement_is_status_3(machine, capsys):
    """Some counters are there: what is not is in the table and in a line."""
    machine.set(unknown=["SQ_INSTS_LDS"])
    machine.install("rocprofv3")
    assert cli.main(["profile", "--metrics", "lds", "--", str(machine.app)]) == 3
    err = capsys.readouterr().err
    assert "partial" in err
    assert line(err, "know") == snapshot(
        "warning: counters-1: this profiler does not know all of the counters on gfx942: SQ_INSTS_LDS: see rocprofv3 "
        "--list-avail; the rest was measured"
    )


def test_resume_runs_the_missing_passes(machine, capsys):
    """The first run stops at another profiler; --resume runs what is missing."""
    machine.set(says="An instance of rocprof is already running", fails="writes nothing")
    machine.install("rocprofv3")
    words = ["--metrics", "lds", "--", str(machine.app)]
    assert cli.main(["profile", *words]) == 3
    assert capsys.readouterr().err.splitlines()[-1] == snapshot(
        "not measured: pass timing (exit status 0), pass counters-1 (timing: another profiler uses this GPU: wait "
        "for it or end …)"
    )
    machine.set(says="", fails="")
    assert cli.main(["profile", "--resume", *words]) == 0
    assert store.read_profile(machine.root / "out/profile/profile.json").complete


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name the command to profile after --"),
        (["--", "./not-there"], "there is no program './not-there'"),
        (["--metrics", "l3", "--", "true"], "no counter, metric or group 'l3'"),
        (["--arch", "sm_90", "--", "true"], "write it like gfx942"),
        (["--timeout", "0", "--", "true"], "not a positive number of seconds"),
        (["--format", "xml", "--", "true"], "invalid choice"),
        (["--resume", "--", "true"], "nothing to resume"),
    ],
)
def test_a_wrong_request_is_one_line_and_status_4(machine, capsys, words, message):
    """What is wrong and what to do; no traceback, nothing run."""
    machine.install("rocprofv3")
    try:
        status = cli.main(["profile", *words])
    except SystemExit as stop:  # argparse's own errors
        status = stop.code
    err = capsys.readouterr().err
    assert status == 4
    assert message in err
    assert "Traceback" not in err
    assert machine.called() == []


def test_two_architectures_need_a_choice(machine, capsys):
    """Which GPU is meant cannot be guessed."""
    machine.gpus("gfx1036", "gfx1100")
    machine.install("rocprofv3")
    assert cli.main(["profile", "--", "true"]) == 4
    assert screen(capsys.readouterr().err) == snapshot(
        "rocattn profile: this machine has gfx1036 and gfx1100: choose one with --arch"
    )


def test_rocpd_needs_a_release_that_writes_it(machine, capsys):
    """Before ROCm 7.0 there is CSV only, and version 1 has nothing else."""
    assert cli.main(["profile", "--dry-run", "--tool", "rocprofv3@6.4", "--format", "rocpd", "--", "true"]) == 4
    assert screen(capsys.readouterr().err) == snapshot(
        "rocattn profile: rocprofv3 (ROCm 6.4) does not write rocpd: ROCm 7.0 and later do"
    )
    assert cli.main(["profile", "--dry-run", "--tool", "rocprof@6.2", "--format", "rocpd", "--", "true"]) == 4
    assert "it writes csv" in capsys.readouterr().err


def test_groups_are_listed_with_their_counters(machine, capsys):
    """For a person and as JSON, for an architecture that need not be here."""
    assert cli.main(["profile", "--list", "--arch", "gfx1201", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["groups"]["memory"] == ["GL2C_EA_RDREQ_sum", "GL2C_EA_WRREQ_sum"]
    assert "FETCH_SIZE reads 0" in told["note"]
    assert cli.main(["profile", "--list"]) == 0
    groups = capsys.readouterr().out.splitlines()
    assert [each for each in groups if "only if" in each] == snapshot(
        [
            "dram (only if named): share of those requests that reach DRAM, and their latency",
            "coalescing (only if named): accesses of the vector L1 for an instruction, and loads",
            "addresses (only if named): address and data units of the vector L1, and address translation",
            "atomics (only if named): atomics to L2 and beyond it, and their latency",
            "writes (only if named): writes from L2 to memory that could not leave",
            "units (only if named): busy cycles of the other units: scalar, vector memory, branches",
            "small_caches (only if named): hits and misses of the scalar and the instruction cache",
            "operations (only if named): floating-point and integer operations of the vector units, by type",
            "launch (only if named): what kept work-groups from starting",
        ]
    )


def test_the_report_says_what_a_collection_lacks(machine, capsys):
    """A counter that the profiler does not know and a metric that the GPU cannot count are named, with the reason."""
    machine.gpus("gfx1100")
    machine.set(arch="gfx1100", unknown=["GL2C_MISS_sum"])
    machine.install("rocprofv3")
    assert cli.main(["profile", "--metrics", "l2_hit_pct", "matrix_busy_pct", "--", str(machine.app)]) == 3
    assert cli.main(["report", "out/profile", "--json", "--out", "out/report"]) == 0
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert any("pass counters-1: partial" in line and "GL2C_MISS_sum" in line for line in problems)
    assert any(line.startswith("matrix_busy_pct was left out: ") for line in problems)


def planned(capsys, *words):
    """Return status, the counted pass's command line with its files, and what was said."""
    status = cli.main(["profile", "--dry-run", "--arch", "gfx942", "--metrics", "lds", *words, "--", "./app"])
    out, err = capsys.readouterr()
    return status, out.partition("# counters-1")[2] or out, err


@pytest.mark.parametrize(
    ("tool", "options", "passed"),
    [
        ("rocprofv3@7.0", ("--kernel", "^fmha|gemm"), " --kernel-include-regex '^fmha|gemm' "),
        ("rocprofv3@6.3", ("--launches", "[2-10,15]"), " --kernel-iteration-range '[2-10,15]' "),
        ("rocprofv3@7.0", ("--gpu-id", "3"), " SQ_WAVES:device=3 "),
        (
            "rocprof@6.2",
            ("--kernel", "fmha", "--gpu-id", "1"),
            "# counters.txt: kernel: fmha\n# counters.txt: gpu: 1\n",
        ),
        ("rocprofv2@6.2", ("--kernel", "fmha"), "# counters.txt: kernel: fmha\n"),
        ("rocprof-compute@7.0", ("--kernel", "fmha", "--launches", "2-10,15"), " -k fmha -d 2-10 15 -- "),
    ],
)
def test_a_choice_is_passed_on_to_the_profiler(machine, capsys, tool, options, passed):
    """In its own words; the kernel trace has no such filter."""
    del machine
    status, line, _ = planned(capsys, "--tool", tool, *options)
    assert (status, passed in line) == (0, True)


@pytest.mark.parametrize(
    ("tool", "options", "says"),
    [
        ("rocprofv3@6.2", ("--kernel", "fmha"), "filters no kernels: ROCm 6.3 and later do"),
        ("rocprofv3@6.3", ("--gpu-id", "1"), "counts on every GPU: hide the others with ROCR_VISIBLE_DEVICES=1"),
        ("rocprof@6.2", ("--kernel", "fmha.*"), "takes a part of a kernel's name, letters, digits and _, not 'fmha.*'"),
        ("rocprof@6.2", ("--launches", "3"), "cannot count certain launches of each kernel; filter the report instead"),
        ("rocprofv2@6.2", ("--gpu-id", "0"), "counts on every GPU"),
        ("rocprof-compute@7.0", ("--gpu-id", "0"), "counts on every GPU"),
        ("rocprofv3@7.0", ("--launches", "0"), "write the launches of each kernel as 3, 2-10 or [2-10,15]"),
        ("rocprofv3@7.0", ("--kernel", "("), "no regular expression"),
    ],
)
def test_a_choice_that_a_profiler_cannot_obey_is_refused(machine, capsys, tool, options, says):
    """In one line; it was never asked for silently."""
    del machine
    status, _, err = planned(capsys, "--tool", tool, *options)
    assert (status, says in err, len(err.splitlines())) == (4, True, 1)


def test_a_report_leaves_out_what_was_not_counted(machine, capsys):
    """The kernel trace has every launch: the second of it is the first that was counted."""
    machine.install("rocprofv3")
    assert cli.main(["profile", "--metrics", "lds", "--launches", "2", "--", str(machine.app)]) == 0
    made = json.loads((machine.root / "out/profile/profile.json").read_text())
    assert (made["launches"], made["kernel"], made["gpu"]) == ("2", "", None)
    capsys.readouterr()
    assert cli.main(["report", "out/profile", "--json", "--out", "out/report"]) == 0
    assert {kernel["launches"] for kernel in json.loads(capsys.readouterr().out)["kernels"]} == {1}
