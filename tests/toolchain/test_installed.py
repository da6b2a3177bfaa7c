"""A remedy's command fits how this rocattn was installed."""

import sys
import sysconfig

import pytest

from rocattn.installed import install_command

PINNED = "ziglang==0.17.0"


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment with a pip of its own, that nothing else is known of."""
    prefix, packages = tmp_path / "envs" / "rocattn", tmp_path / "site-packages"
    prefix.mkdir(parents=True)
    (packages / "pip").mkdir(parents=True)
    (packages / "pip" / "__init__.py").touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str({"purelib": packages, "stdlib": tmp_path}[name]))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    return prefix


def test_pip_installs_into_the_environment_of_this_python(environment, monkeypatch):
    """By its path, as another one may be first on PATH; in the active one the word alone will do."""
    assert install_command("ziglang") == f"{environment}/bin/python -m pip install {PINNED}"
    monkeypatch.setenv("VIRTUAL_ENV", str(environment))
    assert install_command("ziglang") == f"pip install {PINNED}"


def test_the_release_is_what_the_metadata_names(environment, monkeypatch):
    """A package of no extra goes by its name; asv is not asv-runner."""
    monkeypatch.setenv("VIRTUAL_ENV", str(environment))
    assert install_command("zstandard") == "pip install zstandard"
    assert install_command("asv") == "pip install 'asv>=0.6.6'"


def test_pipx_injects_into_the_environment_by_its_name(environment):
    """``pip install`` would go elsewhere."""
    (environment / "pipx_metadata.json").write_text("{}")
    assert install_command("ziglang") == f"pipx inject rocattn {PINNED}"


@pytest.mark.parametrize(
    ("requirements", "rest"),
    [
        ('{ name = "rocattn" }', "rocattn"),
        ('{ name = "rocattn", specifier = ">=0.1" }', "'rocattn>=0.1'"),
        ('{ name = "rocattn", directory = "/src/my rocattn" }', "'rocattn @ file:///src/my%20rocattn'"),
        ('{ name = "rocattn", git = "https://example.org/r?rev=main" }', "'rocattn @ git+https://example.org/r@main'"),
        ('{ name = "rocattn", extras = ["gguf"] }, { name = "torch" }', "--with torch 'rocattn[gguf]'"),
        ("7", "rocattn"),
    ],
)
def test_uv_tool_installs_again_from_where_it_came(environment, requirements, rest):
    """uv replaces a tool's environment: its source, extras and what was added before are named again."""
    (environment / "uv-receipt.toml").write_text(f"[tool]\nrequirements = [{requirements}]\n")
    assert install_command("ziglang") == f"uv tool install --with {PINNED} {rest}"


def test_an_environment_without_pip_is_uvs(environment, tmp_path):
    """As ``uv venv`` makes them, and ``python3 dev.py``."""
    (tmp_path / "site-packages" / "pip" / "__init__.py").unlink()
    assert install_command("ziglang") == f"uv pip install --python {environment}/bin/python {PINNED}"


def test_a_systems_python_needs_the_consent_it_was_given_before(environment, monkeypatch, tmp_path):
    """PEP 668: pip refuses without the option, with which rocattn itself got there."""
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    assert install_command("ziglang") == f"{sys.executable} -m pip install {PINNED}"
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    assert install_command("ziglang") == f"{sys.executable} -m pip install --break-system-packages {PINNED}"
