"""`rocattn kernels occupancy`: one kernel, a file of cases, and what it refuses."""

import csv
import json

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.cli import main

from ...screens import line


def command(capsys, *arguments):
    """Run the command; return its status and what it wrote."""
    status = main(["kernels", "occupancy", *map(str, arguments)])
    return status, *capsys.readouterr()


def test_command_answers_for_one_kernel(capsys):
    """JSON alone on stdout, and without --json a table and the sentence on stderr."""
    status, out, err = command(capsys, "--arch", "gfx1100", "--vgprs", 124, "--block", 128, "--lds", 20000, "--json")
    answer = json.loads(out)
    assert (status, err) == (0, "")
    assert (answer["wave_size"], answer["blocks"], answer["lost_wave_slots"]) == (32, 6, 10)
    assert answer["binding"]["name"] == "LDS"
    status, out, _ = command(capsys, "--arch", "gfx1100", "--vgprs", 9, "--block", 64, "--cu-mode", "--json")
    assert (json.loads(out)["unit"], json.loads(out)["blocks"]) == ("CU", 16)
    status, out, err = command(capsys, "--arch", "gfx950", "--vgprs", 60, "--block", 64, "--lds", 8252)
    assert (status, out) == (0, "")
    assert line(err, "binds") == snapshot("LDS binds at 4.5 waves of 8: 572 bytes of LDS over the step to 5.25 waves")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--arch", "gfx1100"], "give the kernel's --vgprs"),
        (["--vgprs", "3"], "give the kernel's --arch"),
        (["--arch", "gfx803", "--vgprs", "3"], "no facts are known about architecture 'gfx803'"),
        (["--cases", "none.csv"], "cannot read none.csv"),
        (["--cases", "none.csv", "--vgprs", "3"], "--vgprs cannot be combined"),
    ],
)
def test_command_refuses_what_it_cannot_answer(capsys, arguments, reason):
    """One line, status 4."""
    status, out, err = command(capsys, *arguments)
    assert (status, out) == (4, "")
    assert reason in err
    assert err.count("\n") == 1


def test_command_answers_a_file_of_cases_and_names_its_bad_rows(capsys, tmp_path):
    """A row each, empty cells have their defaults; a bad row is one line, and the others are answered."""
    path = tmp_path / "cases.csv"
    path.write_text(
        "# ours\nname,arch,wave,vgprs,agprs,sgprs,lds,block\n"
        "good,gfx1100,32,124,,,,\n"
        "half,gfx1100,64, 60 ,,,8252,96\n"
        '"with, comma",gfx942,,128,64,50,0,256\n'
        "typo,gfx1100,32,12x,,,,\n"
        "short,gfx1100,32\n"
        "old,gfx803,64,24,,,,\n"
        "none,gfx1100,32,,,,,\n"
        f"huge,gfx1100,32,{'9' * 5000},,,,\n"
        "zero,gfx1100,0,8,,,,\n"
    )
    status, out, err = command(capsys, "--cases", path)
    rows = list(csv.DictReader(out.splitlines()))
    assert status == 3
    assert [row["name"] for row in rows] == ["good", "half", "with, comma"]
    assert [(row["waves_per_simd"], row["blocks"], row["bound_by"]) for row in rows] == [
        ("10", "", "VGPRs"), ("7", "14", "LDS"), ("2", "2", "VGPRs"),
    ]  # fmt: skip
    assert [line.split(":")[1] for line in err.splitlines()[:-1]] == ["6", "7", "8", "9", "10", "11"]
    assert all(len(line) < 500 for line in err.splitlines())
    status, out, _ = command(capsys, "--cases", path, "--json")
    answer = json.loads(out)
    assert [case["line"] for case in answer["cases"]] == [3, 4, 5]
    assert (status, len(answer["problems"])) == (3, 6)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("# only words\n", "is empty"),
        ("arch,vgprs,lsd\n", "column 'lsd'"),
        ("arch,wave\n", "no column vgprs"),
        ("arch,vgprs,vgprs\n", "a duplicate column"),
        ("arch,vgprs\n" + "9" * 200_000, "is not a table"),
        (b"\xff\xfe\x00", "is not text"),
    ],
)
def test_command_refuses_a_file_that_is_no_table_of_kernels(capsys, tmp_path, text, reason):
    """The header is checked before anything is answered."""
    path = tmp_path / "cases.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    status, out, err = command(capsys, "--cases", path)
    assert (status, out) == (4, "")
    assert reason in err
