"""The error texts of docs/troubleshooting.md are those that the sources raise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCES = ("cuda/**/*.cpp", "cuda/**/*.h", "python/cutwheel/**/*.py", "cmake/*.cmake", "cmake/*.py")
_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_VARIES = "\0"
SHORTEST = 6
"""a part of a text that is shorter may be found anywhere"""


def headings(text: str) -> list[str]:
    """The texts, in ### `...`."""
    return re.findall(r"^### `(.+)`$", text, re.MULTILINE)


def _of_python(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    constants = {
        ast.unparse(node.targets[0]): ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    }

    def text_of(part: ast.expr) -> str:
        if isinstance(part, ast.Constant):
            return str(part.value)
        assert isinstance(part, ast.FormattedValue)
        return str(constants.get(ast.unparse(part.value), _VARIES))

    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(map(text_of, node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _of_cpp(source: str) -> Iterator[str]:
    """Literals side by side are one; what lies between others of a call varies."""
    for call in re.split(r";\s*\n|[{}]\s*\n", source):
        parts, end = [], 0
        for match in _LITERAL.finditer(call):
            is_adjacent = parts and not call[end : match.start()].strip()
            parts.append(("" if is_adjacent else _VARIES) + match[1].replace('\\"', '"'))
            end = match.end()
        yield "".join(parts)


def texts(path: Path) -> list[str]:
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return list(_of_python(source))
    found = list(_of_cpp(source))
    # "${name}" of CMake.
    return [re.sub(r"\$\{\w+\}", _VARIES, text) for text in found]


@pytest.fixture(scope="module")
def raised() -> list[str]:
    return [text for pattern in SOURCES for path in ROOT.glob(pattern) for text in texts(path)]


def is_raised(heading: str, raised: list[str]) -> bool:
    """Whether one text has all parts of the heading in their order."""
    parts = [part.strip() for part in heading.split("...")]
    pattern = re.compile(".*".join(re.escape(part) for part in parts if part), re.DOTALL)
    return any(pattern.search(text) for text in raised)


def test_the_texts_are_found() -> None:
    found = headings(PAGE.read_text(encoding="utf-8"))
    assert len(found) > 25
    assert len(found) == len(set(found)) == PAGE.read_text(encoding="utf-8").count("\n### ")


@pytest.mark.parametrize("heading", headings(PAGE.read_text(encoding="utf-8")))
def test_the_source_raises_it(raised: list[str], heading: str) -> None:
    assert max(len(part) for part in heading.split("...")) >= SHORTEST
    assert is_raised(heading, raised)


def test_other_texts_are_seen() -> None:
    cpp = 'fail(kValue, names.op, ": ", label,\n " overlaps "\n "itself", n, "; expected x");\n'
    raised = [*_of_cpp(cpp), *_of_python('A = "AA"\nf"{A} is {b}; expected " "c"')]
    for heading in ("... overlaps itself...; expected x", "AA is ...; expected c"):
        assert is_raised(heading, raised)
    for heading in ("... overlaps it self", "overlaps...itself; expected", "... is ... expected d"):
        assert not is_raised(heading, raised)
