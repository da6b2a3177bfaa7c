"""The report on the terminal: it fits, it is never silent, and it marks the nearest limit with and without styles."""

# ruff: noqa: RUF001 - screens have dashes

from dataclasses import replace

import pytest
from inline_snapshot import snapshot

from rocattn_profiling.base.card import Card
from rocattn_profiling.profile.report import report as profile_report
from rocattn_profiling.profile.report.compare import compare
from rocattn_profiling.profile.report.summary import summarise
from rocattn_profiling.profile.report.terminal import fill

from .test_limits import BMM1, BMM2, made_of, report
from .test_names import ABS
from .test_summary import kernels_of

COPIED = ("next      ", "rocattn report AFTER", "xxxxxxxx")


def styled(made, before=None, **screen):
    """Return a report's lines for a terminal of 80 columns, or for another screen."""
    card = Card(**{"width": 80} | screen)
    return fill(card, made, summarise(made), compare(before, made) if before else None).lines


def lines(made, before=None, **screen):
    """Return them as plain text."""
    return [line.plain for line in styled(made, before, **screen)]


def long_names():
    """Return the second product's report with names that fit no terminal, and a second kernel."""
    made = report(BMM2)
    (kernel,) = made.kernels
    made.kernels = [replace(kernel, name=ABS), replace(kernel, name=ABS.replace("Abs", "Negate"), label="b1-h8-q4096")]
    made.problems = ["run/" + "x" * 200 + ".csv: cut off"]
    return made


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("unicode", [True, False])
def test_it_fits_the_terminal(width, unicode):
    """All but commands and paths, which are copied: a kernel's row is never broken."""
    made = long_names()
    for before in (None, report(BMM1)):
        shown = lines(made, before, width=width, unicode=unicode)
        assert max(len(line) for line in shown if not any(command in line for command in COPIED)) <= width
        assert unicode or "".join(shown).isascii()


def test_the_nearest_limit_is_bold_on_a_terminal():
    """Everywhere it has a star, so that a pipe and NO_COLOR lose nothing."""
    (row,) = [line for line in styled(report(BMM2)) if "*≥79" in line.plain]
    bold = {row.plain[span.start : span.end].strip() for span in row.spans if "bold" in str(span.style)}
    assert "*≥79" in bold
    assert not any("46" in text for text in bold), "L1 is not the nearest"


def without_gpu():
    """Return the second product's report of which no file says what GPU ran it."""
    made = made_of(BMM2)
    made.agents = made.agents.iloc[:0]
    return profile_report.build(made)


def asked(made):
    """Return a report of a path and a command of a user's."""
    made.paths, made.command = ["my runs/a"], ("python", "train.py", "--steps", "3")
    return made


RDNA = {
    "ns": 50_000, "SQ_INSTS_VALU": 1000, "GL2C_EA_WRREQ_sum": 1, "GL2C_EA_RDREQ_sum": 1, "SQ_WAVES": 8192,
    "SQC_LDS_IDX_ACTIVE": 1, "GRBM_GUI_ACTIVE": 100_000,
}  # fmt: skip
RX_9070_XT = {
    "arch": "gfx1201", "product": "RX 9070 XT", "cus": 64, "simds": 128, "xccs": 1, "max_clock_mhz": 2970,
}  # fmt: skip


def screen(made, before=None):
    """Return all that a terminal of 80 columns shows."""
    return "\n".join(lines(made, before))


def test_a_kernel_at_a_limit():
    """Bars are full at the peak; what proves a finding and what to run next stand below it."""
    assert screen(report(BMM2)) == snapshot("""\
Kernel 1 (100 % of GPU time): LDS bound at 79 % of the time or more

  kernel                                        share   median  calls  verdict
  HBM          L2           L1           LDS          vector       matrix
1 bmm                                           100 %  37.5 µs      1  LDS bound
  █▊···    35  █····   ≥21  ██▎··   ≥46  ████·  *≥79  ▌····    ≥9  ▎····    ≥4
  2,048 blocks of 256
  % of peak, * nearest limit, ≥ at least

1. Kernel 1: at most 21 % of GPU time, more with fewer LDS cycles
   LDS bound at 79 % of the time or more: 36 cycles per instruction, 83 % of
   them lost to unaligned addresses, 6 % to bank conflicts; rows padded to a
   multiple of the access size make it faster; next is L1 at least 46 %
   counters  SQ_LDS_BANK_CONFLICT 1.05 M, SQ_LDS_IDX_ACTIVE 18.9 M, SQ_INSTS_LDS
             524 k, SQ_LDS_UNALIGNED_STALL 15.7 M
   next      rocattn profile --pc-sampling -- COMMAND
2. Kernel 1: gain not known
   LDS bank conflicts cost 4 % of the kernel's time or more (6 % of the LDS's
   cycles); pad or swizzle the tile's rows
   counters  SQ_LDS_BANK_CONFLICT 1.05 M, SQ_LDS_IDX_ACTIVE 18.9 M
   next      rocattn profile --pc-sampling -- COMMAND

GPU busy time is unknown: counters and samples change when kernels start; for a
run without them: rocattn profile -- COMMAND

After a change, compare:
   rocattn report AFTER --against PATH\
""")


def test_limits_that_were_not_counted():
    """They are no 0; what was counted of them in part is a lower bound."""
    made = asked(report({name: value for name, value in BMM2.items() if "LDS" not in name and "EA0_RD" not in name}))
    assert screen(made) == snapshot("""\
Kernel 1 (100 % of GPU time): limit not known: memory (partly), LDS not counted;
the nearest counted limit is L1 at least 46 %

  kernel                                      share   median  calls  verdict
  HBM          L2           L1           LDS          vector       matrix
1 bmm                                         100 %  37.5 µs      1  not counted
  ▍····    ≥8  █····   ≥21  ██▎··  *≥46  –            ▌····    ≥9  ▎····    ≥4
  2,048 blocks of 256
  % of peak, * nearest limit, ≥ at least, – not counted

Kernel 1 has 48 VGPRs, 2,560 bytes of LDS per block
To measure it:
   next      rocattn profile --metrics memory lds -- python train.py --steps 3

GPU busy time is unknown: counters and samples change when kernels start; for a
run without them: rocattn profile -- python train.py --steps 3\
""")


def test_a_gpu_that_cannot_count():
    """A Radeon: what no counter shows is said to be so, its memory is no HBM, and the machine code may tell."""
    assert screen(report(RDNA, **RX_9070_XT)) == snapshot("""\
Kernel 1 (100 % of GPU time): limit not known: this GPU cannot count L2, L1,
matrix units

  kernel                                    share   median  calls  verdict
  DRAM         L2           L1           LDS          vector       matrix
1 bmm                                       100 %  50.0 µs      1  not countable
  ·····     0  n/a          n/a          ·····     0  ·····     0  n/a
  2,048 blocks of 256
  % of peak, ≥ at least, n/a this GPU cannot count it

Kernel 1 has 48 VGPRs, 2,560 bytes of LDS per block
To measure it:
   next      rocattn kernels audit FILE --lines

GPU busy time is unknown: counters and samples change when kernels start; for a
run without them: rocattn profile -- COMMAND\
""")


def test_times_only():
    """The command that measures more has the paths and the command of the reader's own run in it."""
    assert screen(asked(report({"ns": 37482}))) == snapshot("""\
Kernel 1 (100 % of GPU time): limit not known: the files have times only

  kernel                                      share   median  calls  verdict
1 bmm                                         100 %  37.5 µs      1  not counted
  2,048 blocks of 256

To measure it:
   next      rocattn profile -- python train.py --steps 3

GPU busy time is unknown: the files have only one launch\
""")


def test_a_gpu_that_no_file_names():
    """What it may have been, by what was launched, and the option that names it."""
    assert screen(asked(without_gpu())) == snapshot("""\
Kernel 1 (100 % of GPU time): limit not known: no file says which GPU ran it

  kernel                                    share   median  calls  verdict
1 bmm                                       100 %  37.5 µs      1  GPU not known
  2,048 blocks of 256

Kernel 1 has 48 VGPRs, 2,560 bytes of LDS per block
To measure it:
   next      rocattn report 'my runs/a' --gpu NAME
   NAME      MI210, MI250, MI250X, MI300A, MI300X, MI308X, MI325X, MI350X,
             MI355X, or a Radeon by its name (one of 36: RX 6900 XT, ...)

GPU busy time is unknown: counters and samples change when kernels start; for a
run without them: rocattn profile -- python train.py --steps 3\
""")


def test_copies_and_findings_below_a_percent():
    """Copies are the second line; small findings are counted with their kernels."""
    launches = ("__amd_rocclr_copyBuffer", 1_500_000), ("tiny", 2000), ("tinier", 1900), ("long", 1_000_000)
    made = profile_report.build(kernels_of(*launches))
    assert screen(made) == snapshot("""\
Kernel 1 (40 % of GPU time): fewer blocks than compute units
Copies and fills of the HIP runtime: 60 % of GPU time

  kernel                                     share   median  calls  verdict
1 long                                        40 %  1.00 ms      1  idle units
  1 block of 256
2 tiny                                      0.08 %  2.00 µs      1  launch bound
  1 block of 256
3 tinier                                   0.076 %  1.90 µs      1  launch bound
  1 block of 256

1. Kernel 1: at most 40 % of GPU time
   Fewer blocks (1) than compute units (304): 303 of them are idle; split the
   work further (decode: over keys)
2. Copies and fills of the HIP runtime: at most 60 % of GPU time
   1 for 3 launches: keep data on the GPU between launches, and do not clear
   memory that is overwritten (hipMemcpy, hipMemset); ignore this if only the
   setup copies
   1 more finding (in 2 kernels) below 1 % of GPU time: see the report.

GPU busy time is unknown: the files do not say when kernels start and end; for a
trace: rocattn profile -- COMMAND

After a change, compare:
   rocattn report AFTER --against PATH\
""")
    made.kernels = [replace(each, findings=[] if each.time_share > 0.3 else each.findings) for each in made.kernels]
    assert any("(in 2 kernels) below 1 %" in line for line in lines(made)), "though there is no other"


def test_each_launch_by_itself():
    """The longest is first, with its number."""
    made = profile_report.build(kernels_of(("first", 2000), ("longest", 90_000)), per="dispatch")
    assert [line.split()[:2] for line in lines(made) if line.startswith(("1 ", "2 "))] == [
        ["2", "longest"],
        ["1", "first"],
    ]


def test_more_than_five_findings_are_counted():
    """Five are shown."""
    made = report(BMM2)
    (kernel,) = made.kernels
    findings = [replace(kernel.findings[0], key=f"rule-{n}") for n in range(7)]
    made.kernels = [replace(kernel, findings=findings)]
    shown = lines(made)
    assert [line[:2] for line in shown if line[:1].isdigit() and line[1:2] == "."] == ["1.", "2.", "3.", "4.", "5."]
    assert [line.strip() for line in shown if "findings" in line] == ["2 more findings are in the report."]


def colors(made, before):
    """Return the words that are red or green."""
    return [
        (color, " ".join(line.plain[span.start : span.end].split()))
        for line in styled(made, before) for span in line.spans for color in ("red", "green")
        if color in str(span.style)
    ]  # fmt: skip


def test_a_comparison_opens_with_the_change():
    """What became slower is red; then its limits on both sides, and the kernels of one side."""
    before, after = report(BMM1), report(BMM2)
    (kernel,) = after.kernels
    after.kernels = [kernel, replace(kernel, name="fresh", total_ns=10.0)]
    dropped = [replace(kernel, name=name, total_ns=ns) for name, ns in (("dropped", 10.0), ("dropped, too", 9.0))]
    before.kernels = [*before.kernels, *dropped]
    assert screen(after, before) == snapshot("""\
+29.0 %: kernel 1, LDS busy 23 → 79 %
   LDS cycles per instruction 8 → 36 cycles/instruction; LDS stalls for
   unaligned addresses 0 → 83.3 %; LDS bank conflicts 50 → 5.56 %
3 kernels are in only one of the profiles

     kernel                                      before    after   change  calls
   1 bmm                                        29.1 µs  37.5 µs  +29.0 %      1
        HBM         L2          L1          LDS         vector      matrix
 before █▊··    45  █▏··   ≥28  ██▍·  *≥59  ▉···   ≥23  ▌···   ≥12  ▎···    ≥6
  after █▍··    35  ▉···   ≥21  █▉··   ≥46  ███▏  *≥79  ▍···    ≥9  ▏···    ≥4
gone dropped                                    37.5 µs        –               1
 new fresh                                            –  37.5 µs               1
gone too                                        37.5 µs        –               1

1. Kernels 1, 2: together at most 42 % of GPU time, more with fewer LDS cycles
   LDS bound. Most to gain, kernel 1: LDS bound at 79 % of the time or more: 36
   cycles per instruction, 83 % of them lost to unaligned addresses, 6 % to bank
   conflicts; rows padded to a multiple of the access size make it faster; next
   is L1 at least 46 %
   counters  SQ_LDS_BANK_CONFLICT 1.05 M, SQ_LDS_IDX_ACTIVE 18.9 M, SQ_INSTS_LDS
             524 k, SQ_LDS_UNALIGNED_STALL 15.7 M
   next      rocattn profile --pc-sampling -- COMMAND
2. Kernels 1, 2: gain not known
   LDS bank conflicts. Most to gain, kernel 1: LDS bank conflicts cost 4 % of
   the kernel's time or more (6 % of the LDS's cycles); pad or swizzle the
   tile's rows
   counters  SQ_LDS_BANK_CONFLICT 1.05 M, SQ_LDS_IDX_ACTIVE 18.9 M
   next      rocattn profile --pc-sampling -- COMMAND

Two runs prove nothing. To prove the change:
   rocattn gate run --head WORKTREE\
""")
    assert colors(after, before) + colors(before, after) == snapshot(
        [
            ("red", "+29.0 %: kernel 1, LDS busy 23 → 79 %"),
            ("red", "1 bmm 29.1 µs 37.5 µs +29.0 % 1"),
            ("green", "-22.5 %: kernel 1, LDS busy 79 → 23 %"),
            ("green", "1 bmm 37.5 µs 29.1 µs -22.5 % 1"),
        ]
    )


def test_two_gpus_are_told_apart_before_any_number():
    """Their times stand side by side, without a change and without a color."""
    before, after = report(BMM1, product="MI300A", cus=228, xccs=6), report(BMM2)
    assert screen(after, before) == snapshot("""\
Different GPUs (Instinct MI300A before, Instinct MI300X after): their times
cannot be compared as one change

     kernel                                       before    after  change  calls
   1 bmm                                         29.1 µs  37.5 µs              1

Next, on both sides:
   rocattn profile -- COMMAND\
""")
    assert colors(after, before) == []
