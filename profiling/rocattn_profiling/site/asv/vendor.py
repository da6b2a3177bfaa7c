"""The scripts that asv's pages load from CDNs, fetched from npm at build time and checked against known hashes.

They are third-party (MIT or BSD) and never committed. A checked copy stays in the user's cache folder, so later builds
need no network.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

FETCH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of an npm package that replaces one address in asv's ``index.html``.

    Attributes:
        stem: A part of the address, the same at any CDN.
        package: npm name and version.
        member: Path inside the package's archive.
        sha256: Of the file.
    """

    stem: str
    package: str
    member: str
    sha256: str

    @property
    def name(self) -> str:
        """Path of the copy below ``vendor/``."""
        return f"css/{Path(self.member).name}" if self.member.endswith(".css") else Path(self.member).name


ASSETS = (
    Asset("/jquery-3.3.1", "jquery@3.3.1", "dist/jquery.min.js",
          "160a426ff2894252cd7cebbdd6d6b7da8fcd319c65b70468f10b6690c45d02ef"),
    Asset("/jquery.flot.min.js", "flot@0.8.3", "jquery.flot.js",
          "b7b931f273c38b1277b9c6c1f4e05c4ec09885a487bddaf3279e2d7e49a38e12"),
    Asset("/jquery.flot.time", "flot@0.8.3", "jquery.flot.time.js",
          "a582c832adc7138a6b05aaf61f16ebac274701f1be4afea77e739a1c34b9c41a"),
    Asset("/jquery.flot.selection", "flot@0.8.3", "jquery.flot.selection.js",
          "e6c85f6c1ebe4b4da29d8ae238c7c5060283f05f7ef054f6b91817d02c092918"),
    Asset("/jquery.flot.categories", "flot@0.8.3", "jquery.flot.categories.js",
          "6e81664b28ea795c734906f4aa15614640a75ac7fbd399a7fb9084040698351a"),
    Asset("/jquery.flot.orderBars", "flot-orderbars@1.0.0", "js/jquery.flot.orderBars.js",
          "39735b4f46f96ff4e082572401f47c55a2767b366fd1d1e821e44a8d830a12bf"),
    Asset("/stupidtable", "stupid-table-plugin@1.1.3", "stupidtable.min.js",
          "4642380f28ebe9ed7cac251793b281ef8620c4386205d92788f9b12f5cceb4e0"),
    Asset("/md5.min.js", "blueimp-md5@2.19.0", "js/md5.min.js",
          "64d7ded388c562e4bde9e58ce205e5fa01b9734fcd434d496eb7b4fbfe9b927d"),
    Asset("/bootstrap.min.js", "bootstrap@3.1.1", "dist/js/bootstrap.min.js",
          "898d05a17f2cfc5120ddcdba47a885c378c0b466f30f0700e502757e24b403a1"),
    Asset("/bootstrap.min.css", "bootstrap@3.1.1", "dist/css/bootstrap.min.css",
          "e9503448692b738dd260fbd7f7cabf2e11f09b600fa97e6eb3a56eba5b1a7e9b"),
)  # fmt: skip
_CDN_TAG = re.compile(r'<(?:script src|link rel="stylesheet" href)="(https?://[^"]+)"[^>]*>')


class VendorError(Exception):
    """Raised when a script is unavailable; the message is shown to the user on one line."""


def assets(*, offline: bool = False, cache: Path | None = None) -> dict[str, bytes]:
    """Return the files to put below ``vendor/``, from the cache or else from npm.

    Args:
        offline: Use the cache only.
        cache: Where checked copies are kept (the user's cache folder if None).

    Raises:
        VendorError: When a file cannot be fetched, or is not the one that was reviewed.
    """
    folder = cache or _default_cache()
    cached = {asset: data for asset in ASSETS if (data := _cached(folder, asset)) is not None}
    missing = [asset for asset in ASSETS if asset not in cached]
    if missing and offline:
        raise VendorError("not in the cache yet, and --offline was given")
    if missing:
        fetched = _fetch(missing)
        cached |= fetched
        _keep(folder, fetched)
    return {asset.name: cached[asset] for asset in ASSETS}


def localise(page: str) -> str:
    """Return asv's page with its CDN tags pointed at ``vendor/``.

    The ``integrity`` attributes are dropped: they are for the CDN's build of a file, and our hashes were checked when
    the files were fetched.

    Raises:
        VendorError: When the page loads an address that has no replacement.
    """

    def replaced(match: re.Match[str]) -> str:
        address = match[1]
        asset = next((a for a in ASSETS if a.stem in address), None)
        if asset is None:
            raise VendorError(f"this asv loads {address}, for which no file is known")
        kind = '<link rel="stylesheet" href' if asset.member.endswith(".css") else "<script src"
        return f'{kind}="vendor/{asset.name}">'

    return _CDN_TAG.sub(replaced, page)


def _default_cache() -> Path:
    from rocattn.cache import cache_folder

    return cache_folder() / "asv-scripts"


def _cached(folder: Path, asset: Asset) -> bytes | None:
    try:
        data = (folder / asset.sha256).read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest() == asset.sha256 else None


def _keep(folder: Path, fetched: dict[Asset, bytes]) -> None:
    """Cache the fetched files; if the folder is not writable, the next build downloads them again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for asset, data in fetched.items():
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as partial:
                partial.write(data)
            Path(partial.name).replace(folder / asset.sha256)
    except OSError:
        return


def _fetch(wanted: list[Asset]) -> dict[Asset, bytes]:
    packages = list(dict.fromkeys(asset.package for asset in wanted))
    with tempfile.TemporaryDirectory(prefix="rocattn-npm-") as scratch:
        # One attempt: npm's own retries would hold a build without a network for minutes.
        patience = ["--fetch-retries=0", f"--fetch-timeout={int(FETCH_TIMEOUT_S * 500)}"]
        command = ["npm", "pack", "--loglevel=error", "--ignore-scripts", *patience, *packages]
        try:
            done = subprocess.run(
                command, cwd=scratch, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
            )
        except FileNotFoundError:
            raise VendorError("npm is not installed") from None
        except subprocess.TimeoutExpired:
            raise VendorError(f"npm did not answer within {FETCH_TIMEOUT_S:.0f} s") from None
        if done.returncode:
            code = re.search(r"\bcode (E\w+)", done.stderr)
            raise VendorError(f"npm could not fetch them: {code[1] if code else f'exit status {done.returncode}'}")
        return {asset: _member(Path(scratch), asset) for asset in wanted}


def _member(folder: Path, asset: Asset) -> bytes:
    archive = folder / (asset.package.replace("@", "-") + ".tgz")
    try:
        with tarfile.open(archive) as opened:
            member = opened.extractfile(f"package/{asset.member}")
            data = member.read() if member else b""
    except (OSError, KeyError, tarfile.TarError) as error:
        raise VendorError(f"{asset.package} does not hold {asset.member}: {error}") from error
    if hashlib.sha256(data).hexdigest() != asset.sha256:
        raise VendorError(f"{asset.member} of {asset.package} is not the file that was reviewed (its sha256 differs)")
    return data
