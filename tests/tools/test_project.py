"""Statements of the package about itself: versions, addresses, types."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
yaml = pytest.importorskip("yaml")
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))


def pythons_of_the_tests() -> tuple[str, ...]:
    """The versions that the built wheel is installed with."""
    text = (ROOT / "tests" / "wheel" / "test_clean_install.py").read_text(encoding="utf-8")
    found = re.search(r"^PYTHONS = (\(.*?\))$", text, re.MULTILINE)
    assert found
    versions = ast.literal_eval(found[1])
    assert isinstance(versions, tuple)
    return versions


def test_classifiers_name_the_pythons_that_are_tested():
    start = "Programming Language :: Python :: "
    named = [c.removeprefix(start) for c in PROJECT["classifiers"] if c.startswith(f"{start}3.")]
    assert tuple(named) == pythons_of_the_tests()
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_classifiers_are_sorted_and_no_licence_is_among_them():
    """PEP 639: a licence expression and a classifier of a licence exclude each other."""
    classifiers = [re.sub(r"\b(\d)\b", r"0\1", c) for c in PROJECT["classifiers"]]
    assert classifiers == sorted(set(classifiers))
    assert not [c for c in classifiers if c.startswith("License ::")]


def test_the_package_is_typed_and_says_so(cutwheel: ModuleType) -> None:
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert cutwheel.__file__ is not None
    assert Path(cutwheel.__file__).with_name("py.typed").is_file()


def test_addresses_are_of_one_repository():
    urls = PROJECT["urls"]
    home = urls["Homepage"]
    assert re.fullmatch(r"https://github\.com/[\w-]+/[\w-]+", home)
    assert {"Homepage", "Documentation", "Source", "Issues", "Changelog"} <= urls.keys()
    for name, url in urls.items():
        assert url == home or url.startswith(f"{home}/"), name
        if found := re.fullmatch(rf"{home}/(?:blob|tree)/main/(.+)", url):
            assert (ROOT / found[1]).exists(), name


def test_documents_name_the_repository_of_the_addresses():
    owner_and_name = PROJECT["urls"]["Homepage"].removeprefix("https://github.com/")
    for name in ("SECURITY.md", "docs/releasing.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert set(re.findall(r"--repo (\S+)", text)) == {owner_and_name}, name
    assert f"https://github.com/{owner_and_name}/security/" in (ROOT / "SECURITY.md").read_text()


def test_a_citation_is_of_this_version():
    assert CITATION["version"] == PROJECT["version"]
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["repository-code"] == PROJECT["urls"]["Source"]
    assert CITATION["keywords"] == PROJECT["keywords"]
    assert CITATION["abstract"] == f"{PROJECT['description']}."


def test_a_citation_has_what_its_format_needs():
    """make lint holds the whole of it against the schema of the format."""
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    assert CITATION["message"]
    assert [author["name"] for author in CITATION["authors"]]
