"""The documentation site, as far as it can be tested without rendering it: `make docs` does the
rest."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import site_pages
import site_reference

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "cutwheel"


def navigation() -> list[str]:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    return re.findall(r"(\S+\.md)$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "pages"
    site_pages.stage(folder)
    return folder


def test_every_page_is_in_the_navigation_once(staged: Path) -> None:
    pages = [path.relative_to(staged).as_posix() for path in staged.rglob("*.md")]
    assert sorted(navigation()) == sorted(pages)


def test_links_between_pages_hold(staged: Path) -> None:
    count = 0
    for page in staged.rglob("*.md"):
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^()\s#]+)[^()\s]*\)", text):
            if not target.startswith("https://"):
                count += 1
                assert (page.parent / target).exists(), f"{page.name}: {target}"
    assert count > 100


@pytest.mark.parametrize(
    ("target", "document", "page", "expected"),
    [
        ("docs/ops.md#float32", "README.md", "index.md", "ops.md#float32"),
        ("../README.md#state", "docs/ops.md", "ops.md", "index.md#state"),
        ("../ops.md", "docs/tasks/linear.md", "tasks/linear.md", "../ops.md"),
        ("../../CHANGELOG.md", "docs/tasks/fp8.md", "tasks/fp8.md", "../changelog.md"),
        ("../examples", "docs/fuse.md", "fuse.md", f"{site_pages.REPOSITORY}/tree/main/examples"),
        ("LICENSE", "README.md", "index.md", f"{site_pages.REPOSITORY}/blob/main/LICENSE"),
        ("#x", "README.md", "index.md", "#x"),
        ("https://x.y/docs/ops.md", "README.md", "index.md", "https://x.y/docs/ops.md"),
    ],
)
def test_links_lead_to_pages_or_to_the_repository(
    target: str, document: str, page: str, expected: str
) -> None:
    assert site_pages.leads_to(target, document, page) == expected


def test_a_dead_link_stops_the_build() -> None:
    with pytest.raises(ValueError, match=r"docs/ops\.md: the link gone\.md leads to no file"):
        site_pages.staged("[x](gone.md)", "docs/ops.md", "ops.md")


def test_code_is_left_alone() -> None:
    text = "`[x](gone.md)`\n\n```\n[x](gone.md)\n```\n"
    assert site_pages.staged(text, "docs/ops.md", "ops.md") == text


def test_lists_begin_behind_an_empty_line() -> None:
    """GitHub does without; the site makes a paragraph of such a list."""
    for path in (*ROOT.glob("docs/**/*.md"), *map(ROOT.joinpath, site_pages.DOCUMENTS)):
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        assert not re.search(r"^(?!\d+\. )[^\s#|<-][^\n]*\n(?:- |\d+\. )", text, re.MULTILINE), (
            path.name
        )


def test_the_reference_has_every_public_name(cutwheel) -> None:
    named = {name.public for name in site_reference.public_names(PACKAGE)}
    values = {f"cutwheel.{name}" for name in (*site_reference.MODULES, *site_reference.VALUES)}
    exported = {f"cutwheel.{name}" for name in cutwheel.__all__}
    for module in site_reference.MODULES:
        public = importlib.import_module(f"cutwheel.{module}").__all__
        exported |= {f"cutwheel.{module}.{name}" for name in public}
    assert named == exported - values
    written = "".join(site_reference.pages(PACKAGE).values())
    for name in named:
        assert f"::: {name}\n" in written


def test_every_public_name_has_a_docstring_that_names_its_arguments() -> None:
    pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")
    import cutwheel.distributed  # which cutwheel does not import

    for name in site_reference.public_names(PACKAGE):
        found: Any = cutwheel
        for part in name.public.split(".")[1:]:
            found = getattr(found, part)
        text = inspect.getdoc(found) or ""
        assert text not in ("", inspect.getdoc(type(found))), name.public
        if inspect.isfunction(found) and "others:" not in text:
            for argument in inspect.signature(found).parameters:
                assert re.search(rf"\b{argument}\b", text), f"{name.public}: {argument}"


def test_a_name_without_a_page_is_an_error() -> None:
    name = site_reference.Name("cutwheel.new", "cutwheel.elsewhere")
    with pytest.raises(ValueError, match=r"cutwheel\.new: no page of the API reference has"):
        site_reference.page_of(name)
