"""asv.conf.json: every key is one that asv knows, and every pin is the lock's."""

import re
from pathlib import Path

import json5
import pytest
from asv.config import Config

ROOT = Path(__file__).parents[2]
SETTINGS = json5.loads((ROOT / "asv.conf.json").read_text())
# Keys that asv reads with getattr, so that its Config class does not list them.
READ_ELSEWHERE = {"version", "build_cache_size"}


def test_every_key_is_one_that_asv_reads():
    """asv ignores a misspelt key without a word (pandas had one for years)."""
    assert SETTINGS.keys() <= vars(Config()).keys() | READ_ELSEWHERE


def test_asv_itself_takes_the_file():
    """The file with its comments loads through asv, and asks for a process launch that HIP survives."""
    conf = Config.load(str(ROOT / "asv.conf.json"))
    assert (conf.launch_method, conf.environment_type, conf.show_commit_url) == ("spawn", "virtualenv", "#")
    assert (ROOT / conf.benchmark_dir / "__init__.py").is_file()
    assert Path(conf.results_dir).parts[0] == Path(conf.env_dir).parts[0] == Path(conf.html_dir).parts[0] == ".asv"


def test_branches_follow_the_clone():
    """Results of a commit on no listed branch have no point in any graph: HEAD is on one in every clone."""
    assert SETTINGS["branches"] == ["HEAD"]


def test_commands_build_one_wheel_without_dependencies():
    """asv's default commands collect the wheels of dependencies, then stop because there are several."""
    build, install = SETTINGS["build_command"][-1], SETTINGS["install_command"][-1]
    assert {"--no-deps", "--no-build-isolation", "{build_cache_dir}", "{build_dir}"} <= set(build.split())
    assert {"--no-deps", "--force-reinstall", "{wheel_file}"} <= set(install.split())
    assert SETTINGS["uninstall_command"][0].startswith("return-code=any ")


def pins():
    """(distribution, version) of everything the configuration installs."""
    found = {name.removeprefix("pip+"): versions[0] for name, versions in SETTINGS["matrix"]["req"].items()}
    return sorted({**found, **dict(re.findall(r"([\w-]+)==([\w.]+)", " ".join(SETTINGS["build_command"])))}.items())


@pytest.mark.parametrize(("name", "version"), pins(), ids=[name for name, _ in pins()])
def test_pins_are_those_of_the_lock(name, version):
    """The environments of asv hold the versions that the project was locked with."""
    lock = (ROOT / "requirements.lock").read_text()
    found = re.findall(rf"^{re.escape(name.replace('_', '-'))}==([^\s;]+)", lock, re.MULTILINE)
    assert version in found


def test_the_environment_has_all_that_the_suites_import():
    """The wheel is installed without dependencies: those of the suites and of the kernels' cache come from here."""
    imported = {"numpy", "ml-dtypes", "msgspec", "filelock", "platformdirs"}
    assert imported | {"asv_runner", "hatchling"} == {name for name, _ in pins()}
