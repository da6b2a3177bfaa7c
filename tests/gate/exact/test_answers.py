"""Asking a side's code: what comes of a probe that does not answer as it should."""

import sys
from types import SimpleNamespace

import pytest
from own_gate import answers as exact_answers
from own_gate.answers import ProbeError, ask, ready

ANSWER = "import json, sys\npath = json.load(open(sys.argv[1]))['answer']\n"


def asked(tmp_path, monkeypatch, probe, python=sys.executable):
    """Ask a side whose probe is this program."""
    script = tmp_path / "probe.py"
    script.write_text(probe)
    monkeypatch.setattr(exact_answers, "PROBE", script)
    monkeypatch.setattr(exact_answers, "TIMEOUT_S", 20.0)
    launcher = SimpleNamespace(scratch=tmp_path, python=python, environment={})
    return ask(SimpleNamespace(launchers={"head": launcher}), "head", {}, [])


def test_an_answer_is_taken_whatever_was_printed_beside_it(tmp_path, monkeypatch):
    """Also one whose process failed after it had answered; the folder of the question is gone."""
    probe = f"{ANSWER}open(path, 'w').write('{{\"problems\": {{\"p\": {{}}}}}}')\nprint('noise')\nsys.exit(3)\n"
    assert list(asked(tmp_path, monkeypatch, probe)) == ["p"]
    assert [path.name for path in tmp_path.iterdir()] == ["probe.py"]


@pytest.mark.parametrize(
    ("probe", "said"),
    [
        ("", "head does not report its plans: it printed nothing"),
        ("print('one')\nraise SystemExit('two\\n')", "head does not report its plans: two"),
        (f"{ANSWER}open(path, 'w').write('[')", "head's plans cannot be read: "),
        (f"{ANSWER}open(path, 'w').write('{{\"problems\": 3}}')", "head's plans cannot be read: "),
        (f"{ANSWER}open(path, 'w').write('{{\"absent\": \"no module\"}}')", "head has no rocattn: no module"),
    ],
    ids=["nothing", "the last line", "no JSON", "other JSON", "no library"],
)
def test_what_is_no_answer_is_one_line(tmp_path, monkeypatch, probe, said):
    """The side is named, and what it said last."""
    with pytest.raises(ProbeError) as caught:
        asked(tmp_path, monkeypatch, probe)
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)


def test_a_side_that_does_not_end_or_start_is_one_line(tmp_path, monkeypatch):
    """Its import may hang, or its interpreter be gone."""
    with pytest.raises(ProbeError, match="head does not report its plans: "):
        asked(tmp_path, monkeypatch, "", python=str(tmp_path / "none"))
    real = exact_answers.run_group
    monkeypatch.setattr(exact_answers, "run_group", lambda *a, **k: real(*a, **{**k, "timeout_s": 0.5}))
    with pytest.raises(ProbeError, match="head did not report its plans within 20 s"):
        asked(tmp_path, monkeypatch, "import time\ntime.sleep(60)\n")


def test_cpu_kernels_are_compiled_on_nobodys_time(tmp_path, monkeypatch):
    """On both sides, and a side that cannot stops nothing."""
    script = tmp_path / "probe.py"
    script.write_text(f"{ANSWER}import os\nopen('../../asked', 'a').write(os.environ['SIDE'])\nsys.exit(1)\n")
    monkeypatch.setattr(exact_answers, "PROBE", script)
    launchers = {}
    for side in ("base", "head"):
        (tmp_path / side).mkdir()
        launchers[side] = SimpleNamespace(scratch=tmp_path / side, python=sys.executable, environment={"SIDE": side})
    context, said = SimpleNamespace(launchers=launchers), []
    context.say = said.append
    ready(context)
    assert said == ["compiling the CPU kernels of both sides, unless they are cached"]
    assert (tmp_path / "asked").read_text() == "basehead"
