"""What hatchling asks of this project: the package page from README.md, and the CPU kernels of a wheel for others.

An installer needs neither a compiler nor minutes: kernels are compiled only where ``ROCATTN_WHEEL_KERNELS`` says which
("all", or names of `rocattn.toolchain.host.WHEEL_TARGETS`, with commas), as `python3 dev.py wheel` does.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

KERNELS = "ROCATTN_WHEEL_KERNELS"
_PICTURE = re.compile(r'<picture>.*?<img src="(?P<place>[^"]+)".*?alt="(?P<text>[^"]*)">\s*</picture>', re.DOTALL)
_IMAGE = re.compile(r"!\[(?P<text>[^\]]*)\]\((?P<place>[^)\s]+)\)")
_LINK = re.compile(r"(?<!!)\[(?P<text>(?:!\[[^\]]*\]\([^)]*\)|[^\[\]])+)\]\((?P<place>[^)\s]+)\)")
_COMMENT = re.compile(r"<!--.*?-->\n", re.DOTALL)
# Who reads the package page stands in no clone.
_INSTALL = {"In a clone of this repository:": "Install it:", "pip install .\n": "pip install rocattn\n"}
_OF_A_CLONE = re.compile(r"## Work on rocattn\n.*", re.DOTALL)
_PICTURES = re.compile(r"## The gate\n.*?(?=## )", re.DOTALL)


def repository_address(citation: str) -> str:
    """Return the repository's address, which stands in CITATION.cff and nowhere else; "" until it does."""
    found = re.search(r"^repository-code: *[\"']?(https://[^\s\"']+?)/?[\"']?$", citation, re.MULTILINE)
    return found[1] if found else ""


def package_page(readme: str, address: str) -> str:
    """Return README.md for readers without a clone: links and pictures are absolute, or plain text without an address.

    Raises:
        ValueError: When README.md has no longer the lines that say how to install from a clone.
    """
    for line, instead in _INSTALL.items():
        if line not in readme:
            raise ValueError(f"hatch_build.py replaces {line!r} of README.md, which is not there")
        readme = readme.replace(line, instead)
    readme = _COMMENT.sub("", _OF_A_CLONE.sub("", readme))
    if not address:
        readme = _PICTURES.sub("", readme)

    def absolute(match: re.Match[str], kind: str) -> str:
        place = match["place"]
        return place if re.match(r"https?:|#|mailto:", place) else f"{address}/{kind}/HEAD/{place}"

    def image(match: re.Match[str]) -> str:
        return f"![{match['text']}]({absolute(match, 'raw')})" if address else match["text"]

    def link(match: re.Match[str]) -> str:
        place = absolute(match, "blob")
        return match["text"] if place.startswith("/") else f"[{match['text']}]({place})"

    return _LINK.sub(link, _IMAGE.sub(image, _PICTURE.sub(image, readme)))


class PackagePage(MetadataHookInterface):
    """Fills in the description and the addresses of the package's metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set ``readme`` and ``urls``."""
        root = Path(self.root)
        address = repository_address((root / "CITATION.cff").read_text("utf-8"))
        text = package_page((root / "README.md").read_text("utf-8"), address)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {}
        if address:
            metadata["urls"] = {
                "Repository": address,
                "Documentation": f"{address}/blob/HEAD/docs/README.md",
                "Changelog": f"{address}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }


class WheelKernels(BuildHookInterface[Any]):
    """Puts compiled CPU kernels into a wheel that others will install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile what ``ROCATTN_WHEEL_KERNELS`` names; fails without the pinned compiler."""
        wanted = os.environ.get(KERNELS, "")
        if version == "editable" or not wanted:
            return
        sys.path.insert(0, self.root)
        from rocattn.toolchain.cpu_library import FOLDER, write_libraries
        from rocattn.toolchain.host import WHEEL_TARGETS

        self.made = tempfile.TemporaryDirectory(prefix="rocattn-kernels-")
        write_libraries(Path(self.made.name), WHEEL_TARGETS if wanted == "all" else wanted.split(","))
        for path in Path(self.made.name).iterdir():
            build_data["force_include"][str(path)] = f"rocattn/{FOLDER}/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the copies that the wheel now holds."""
        if hasattr(self, "made"):
            self.made.cleanup()
