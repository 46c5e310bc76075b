"""Links between the documents: files that are there, and headings that have the anchor's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
FENCED = re.compile(r"^(`{3,}|~{3,}).*?^\1[`~]*$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?<=\n\n)(?: {4,}.*\n|\n)+")
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(\s*<?([^()\s<>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s<>]+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$", re.MULTILINE)
ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def without_blocks(text: str) -> str:
    """Without blocks of code: what looks like a link or a heading there is none."""
    return INDENTED.sub("", FENCED.sub("", text))


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings: the second of one name ends with -1."""
    found: dict[str, int] = {}
    names: set[str] = set()
    for heading in HEADING.findall(without_blocks(text)):
        shown = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")
        count = found.get(name, 0)
        found[name] = count + 1
        names.add(f"{name}-{count}" if count else name)
    return names | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))


def links(text: str) -> list[str]:
    shown = CODE.sub("", without_blocks(text))
    found = [*LINK.findall(shown), *REFERENCE.findall(shown)]
    return [link for link in found if not ELSEWHERE.match(link)]


def dead(document: Path, root: Path) -> Iterator[str]:
    """Errors in the relative links of a document."""
    for link in links(document.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (document.parent / unquote(path)).resolve() if path else document
        if not target.is_relative_to(root) or not target.exists():
            yield f"{link}: there is no such file"
        elif anchor and (
            target.suffix != ".md" or anchor not in anchors(target.read_text(encoding="utf-8"))
        ):
            yield f"{link}: {target.name} has no such heading"


def test_the_documents_are_found():
    assert {"README.md", "CONTRIBUTING.md", "docs/ops.md", "benchmarks/README.md"} <= {*DOCUMENTS}
    assert sum(len(links((ROOT / name).read_text(encoding="utf-8"))) for name in DOCUMENTS) > 60


@pytest.mark.parametrize("name", DOCUMENTS)
def test_relative_links_and_their_anchors_lead_somewhere(name):
    assert list(dead(ROOT / name, ROOT)) == []


def test_dead_links_are_seen(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "other.md").write_text(
        "# `cutwheel.mm(a, b)`, and [more](x.md)!\n\n## Same\n\n## Same\n\n```\n# code\n```\n"
    )
    document = tmp_path / "docs" / "one.md"
    good = (
        "other.md#cutwheelmma-b-and-more other.md#same other.md#same-1 #one ../docs https://x.y/#z"
    )
    bad = "gone.md other.md#code other.md#same-2 #two ../../etc"
    written = "".join(f"[text]({link})\n" for link in [*good.split(), *bad.split()])
    code = "`[code](gone2.md)`\n\n    [code](gone3.md)\n\n```\n[code](gone4.md)\n```\n"
    document.write_text(f"# One\n\n{written}\n{code}\n[named]: gone5.md\n")
    assert [problem.partition(":")[0] for problem in dead(document, tmp_path)] == [
        *bad.split(),
        "gone5.md",
    ]
