"""What hatchling asks of this project: the package page from README.md."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

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
