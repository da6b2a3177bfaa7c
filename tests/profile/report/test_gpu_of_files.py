"""Which GPU ran it, by whatever file says so, and the peak that its memory is compared with."""

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.cli import main

from ...screens import line, screen
from ..ingest import generators as g
from ..ingest import older_generators as older

ROCMINFO = """CMD: rocminfo
\x1b[37mROCk module is loaded\x1b[0m
==========
HSA Agents
==========
*******
Agent 1
*******
  Name:                    AMD EPYC 7A53
  Marketing Name:          AMD EPYC 7A53
  Node:                    0
  Device Type:             CPU
  Compute Unit:            64
"""
GCD = """*******
Agent {agent}
*******
  Name:                    {arch}
  Uuid:                    GPU-82b77d1d4fcbc2d4
  Marketing Name:          {product}
  Node:                    {node}
  Device Type:             GPU
  Cache Info:
    L1:                      16(0x10) KB
  Chip ID:                 {chip}
  Max Clock Freq. (MHz):   {clock}
  Compute Unit:            {cus}
  SIMDs per CU:            4
  Wavefront Size:          64(0x40)
  Max Waves Per CU:        32(0x20)
  Pool Info:
    Pool 4
      Segment:                 GROUP
      Size:                    64(0x40) KB
  ISA Info:
    ISA 1
      Name:                    amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-
"""
MI250 = {"arch": "gfx90a", "product": "AMD Instinct MI250X/MI250", "chip": "29708(0x740c)", "clock": 1700, "cus": 104}


def rocprof1(folder, *gcds, gpu=8):
    """Write what rocprof 1 leaves: launches that move 2 GB in 1.7 ms, and rocminfo's text."""
    counters = {"FETCH_SIZE": 1_050_000.25, "WRITE_SIZE": 1_048_576.5}
    made = [g.Launch(n + 1, "stencil", ns=1_700_000, agent=gpu, counters=counters, start=10**15 + n * 10**8)
            for n in range(3)]  # fmt: skip
    older.v1(folder / "results.csv", made)
    if gcds:
        text = "".join(GCD.format(agent=9 + n, **MI250 | {"node": 8 + n} | gcd) for n, gcd in enumerate(gcds))
        (folder / "results.sysinfo.txt").write_text(ROCMINFO + text)
    return folder


def said(capsys, *argv):
    """Return what the report says on the terminal."""
    main(["report", *map(str, argv)])
    return capsys.readouterr().err


def test_rocminfos_text_beside_the_results_names_the_gpu(tmp_path, capsys):
    """The GPU of the rows' gpu-id, by its node: of two kinds in a machine it is the one that ran it."""
    run = rocprof1(tmp_path / "run", {}, {"product": "AMD Instinct MI210", "chip": "29711(0x740f)"})
    first = said(capsys, run, "--out", tmp_path / "out").splitlines()[0]
    assert first == "Kernel 1 (100 % of GPU time): memory bound at 77 % of 1.64 TB/s"
    page = (tmp_path / "out/profile.md").read_text()
    assert "Instinct MI250 " in page
    assert "MI210" not in page


def test_without_a_gpu_the_numbers_that_need_none_are_said(tmp_path, capsys):
    """Bytes and GB/s are no percentages."""
    text = said(capsys, rocprof1(tmp_path / "run"), "--out", tmp_path / "out")
    assert screen(text, tmp=tmp_path) == snapshot("""\
Kernel 1 (100 % of GPU time): limit not known: no file says which GPU ran it
  kernel                                                        share   median  calls  verdict
1 stencil                                                       100 %  1.70 ms      3  GPU not known
  24 blocks of 128
1. Kernel 1: gain not known
   16 bytes of scratch per lane: registers are spilled to memory, or an array index is known only at run time (the audit shows which); a smaller tile or fewer live values avoid the first, unrolling the second
   next      rocattn kernels audit FILE --lines
Kernel 1 has 24 VGPRs, 512 bytes of LDS per block, 16 bytes of scratch per lane, 1,264 GB/s of memory traffic
To measure it:
   next      rocattn report tmp/run --gpu NAME
   NAME      MI210, MI250, MI250X, MI300A, MI300X, MI308X, MI325X, MI350X, MI355X, or a Radeon by its name (one of 36: RX 6900 XT, ...)
GPU busy time is unknown: counters and samples change when kernels start; for a run without them: rocattn profile -- COMMAND
The report is at tmp/out/profile.html\
""")  # noqa: E501
    assert "Read bandwidth (GB/s)" in (tmp_path / "out/profile.md").read_text()


@pytest.mark.parametrize("name", ["MI250X", "mi250", "Instinct MI250X", "AMD Instinct MI250X/MI250", "MI210"])
def test_the_gpu_can_be_named_as_people_do(tmp_path, capsys, name):
    """All of these have the same memory."""
    text = said(capsys, rocprof1(tmp_path), "--gpu", name, "--out", tmp_path / "o")
    assert text.splitlines()[0] == "Kernel 1 (100 % of GPU time): memory bound at 77 % of 1.64 TB/s"


@pytest.mark.parametrize(
    ("agent", "bound"),
    [
        (("gfx942", "90402", "80", "AMD Instinct MI308X"), "77 % of 5.32 TB/s"),
        (("gfx942", "90402", "80", "AMD Radeon Graphics"), "77 % of 5.32 TB/s"),
        (("gfx1030", "100300", "72", "AMD Radeon RX 6800 XT"), "80 % of 0.51 TB/s"),
        (("gfx908", "90008", "120", "AMD Instinct MI100"), "67 % of 1.23 TB/s"),
    ],
)
def test_each_product_has_its_peak(tmp_path, capsys, agent, bound):
    """By its name, or by its target and CUs where the driver has none."""
    arch, version, cus, name = agent
    kib = {"77": 400_000.0, "80": 40_000.0, "67": 80_000.0}[bound[:2]]
    made = [g.Launch(1, "k", ns=100_000, agent=2, counters={"FETCH_SIZE": kib, "WRITE_SIZE": 0.0})]
    g.v3_counters(tmp_path / "a_counter_collection.csv", made)
    g.v3_agents(
        tmp_path / "a_agent_info.csv", Name=arch, Gfx_Target_Version=version, Num_Xcc="1", Cu_Count=cus,
        Simd_Count=str(4 * int(cus)), Product_Name=name,
    )  # fmt: skip
    assert bound in said(capsys, tmp_path, "--out", tmp_path / "out").splitlines()[0]


@pytest.mark.parametrize("name", ["AMD Radeon PRO V710", "AMD Radeon RX 7750 XT", "AMD Instinct MI310X"])
def test_a_peak_that_is_not_known_is_asked_for(tmp_path, capsys, name):
    """More counters would not help; the option that does is the next step, and it does help."""
    counters = {"FETCH_SIZE": 40_000.0, "WRITE_SIZE": 0.0}
    made = [g.Launch(1, "k", (622_592, 1, 1), (256, 1, 1), ns=100_000, agent=2, counters=counters)]
    g.v3_counters(tmp_path / "a_counter_collection.csv", made)
    arch = {"Name": "gfx942"} if "Instinct" in name else {"Name": "gfx1101", "Gfx_Target_Version": "110001"}
    g.v3_agents(tmp_path / "a_agent_info.csv", Num_Xcc="1", Cu_Count="54", Simd_Count="216", Product_Name=name, **arch)
    text = said(capsys, tmp_path, "--out", tmp_path / "out")
    assert text.splitlines()[0].endswith(" not counted; memory unknown without the memory's peak bandwidth")
    assert line(text, "RATE") == f"next      rocattn report {tmp_path} --peak memory=RATE"
    assert "82 % of 0.50 TB/s" in said(capsys, tmp_path, "--peak", "memory=500GB/s", "--out", tmp_path / "out")


def test_a_given_peak_goes_first_and_is_called_given(tmp_path, capsys):
    """Of a product without one, or in place of the tables'."""
    run = rocprof1(tmp_path / "run", {})
    text = said(capsys, run, "--peak", "hbm=1.5TB/s", "--out", tmp_path / "out")
    assert text.startswith("Kernel 1 (100 % of GPU time): memory bound at 84 % of 1.50 TB/s")
    assert line(text, "--peak") == snapshot("note: peaks from --peak, not from tables or files: hbm=1.5TB/s")
    assert '"peak_gbps": "given"' in (tmp_path / "out/profile.json").read_text()


@pytest.mark.parametrize("text", ["hbm=1.5", "l2=2TB/s", "1.5TB/s", "hbm=-1GB/s"])
def test_a_peak_without_name_or_unit_is_refused(tmp_path, capsys, text):
    """In one line, before anything is read."""
    assert main(["report", str(rocprof1(tmp_path, {})), "--peak", text]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rocattn report: --peak {text!r} is not a peak: give the memory's in GB/s or TB/s")


def test_an_unset_variable_is_no_folder(tmp_path, capsys, monkeypatch):
    """`report "$DIR"` without DIR does not search the working folder."""
    monkeypatch.chdir(tmp_path)
    assert main(["report", ""]) == 4
    assert capsys.readouterr().err.startswith("rocattn report: '' is not a path (an unset variable?)")
    assert main(["report", "", "--files"]) == 4
