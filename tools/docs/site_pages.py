"""Stages the documentation site: the pages of docs/ and the other documents of the repository with
links that hold there, and the API reference. `make docs` renders what lies in the folder then.

    python tools/docs/site_pages.py stage build/docs
    python tools/docs/site_pages.py check build/site

Nothing here knows the program that renders, so another one may take its place.
"""

from __future__ import annotations

import argparse
import posixpath
import re
import shutil
import sys
import zlib
from pathlib import Path
from urllib.parse import unquote

import site_reference

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "cutwheel"
REPOSITORY = "https://github.com/cutwheel/cutwheel"
# Documents outside of docs/ that are pages of the site.
DOCUMENTS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
_CODE_OR_LINK = re.compile(
    r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)|(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)"
    r"|\]\((?P<target>[^()\s]+)\)",
    re.MULTILINE | re.DOTALL,
)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def leads_to(target: str, document: str, page: str) -> str:
    """Where a link of a document leads on the site.

    Args:
        target: the link, relative to the document
        document: path in the repository
        page: path of the document in the site

    Raises:
        ValueError: no such file is in the repository
    """
    path, hash_mark, fragment = target.partition("#")
    if not path or _ELSEWHERE.match(target):
        return target
    found = posixpath.normpath(posixpath.join(posixpath.dirname(document), unquote(path)))
    if not (ROOT / found).exists():
        raise ValueError(f"{document}: the link {target} leads to no file")
    if found.startswith("docs/") or found in DOCUMENTS:
        place = DOCUMENTS.get(found, found.removeprefix("docs/"))
        return posixpath.relpath(place, posixpath.dirname(page) or ".") + hash_mark + fragment
    kind = "tree" if (ROOT / found).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{found}{hash_mark}{fragment}"


def staged(text: str, document: str, page: str) -> str:
    """A document with the links of a page."""

    def lead(match: re.Match[str]) -> str:
        target = match["target"]
        return f"]({leads_to(target, document, page)})" if target else match[0]

    return _CODE_OR_LINK.sub(lead, text)


def stage(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    own = {f"docs/{path.relative_to(folder)}": path for path in folder.rglob("*.md")}
    for document, path in (own | {name: folder / page for name, page in DOCUMENTS.items()}).items():
        text = (ROOT / document).read_text(encoding="utf-8")
        page = path.relative_to(folder).as_posix()
        path.write_text(staged(text, document, page), encoding="utf-8")
    for page, text in site_reference.pages(PACKAGE).items():
        path = folder / page
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")


def missing(site: Path) -> list[str]:
    """Public names that are not in the inventory, which only what was rendered gets into."""
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    present = {line.split(b" ")[0].decode() for line in zlib.decompress(inventory).splitlines()}
    return [x.public for x in site_reference.public_names(PACKAGE) if x.public not in present]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", choices=("stage", "check"))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "stage":
        stage(arguments.folder)
        return 0
    names = missing(arguments.folder)
    for name in names:
        print(f"{name} is not in the API reference", file=sys.stderr)
    return len(names) > 0


if __name__ == "__main__":
    sys.exit(main())
