"""The Python code of the documents: blocks, what they name of cutwheel, and how they run."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(pattern)
)
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    document: str
    line: int
    source: str


def blocks(document: str) -> list[Block]:
    text = (ROOT / document).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start(1)) + 1
        found.append(Block(document, line, match[1]))
    return found


def parse(block: Block) -> ast.Module:
    """With the lines of the document."""
    return ast.increment_lineno(ast.parse(block.source, block.document), block.line - 1)


def _path_of(node: ast.expr) -> list[str] | None:
    """["cutwheel", "nn", "Linear"] of `cutwheel.nn.Linear`."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id == "cutwheel":
        return [node.id, *names]
    return None


def _named(package: Any, names: list[str]) -> Any:
    found = package
    for name in names[1:]:
        found = getattr(found, name)
    return found


def problems(block: Block, package: Any) -> Iterator[str]:
    """Names of cutwheel that are not there, and calls that do not fit the signatures."""
    for node in ast.walk(parse(block)):
        where = f"{block.document}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Attribute) and (path := _path_of(node)):
            try:
                _named(package, path)
            except AttributeError as error:
                yield f"{where}: {ast.unparse(node)}: {error}"
        elif isinstance(node, ast.Call) and (path := _path_of(node.func)):
            try:
                signature = inspect.signature(_named(package, path))
            except AttributeError:
                continue  # told above
            keywords = {word.arg: None for word in node.keywords if word.arg is not None}
            is_open = any(isinstance(x, ast.Starred) for x in node.args) or any(
                word.arg is None for word in node.keywords
            )
            bind = signature.bind_partial if is_open else signature.bind
            try:
                bind(*(None for x in node.args if not isinstance(x, ast.Starred)), **keywords)
            except TypeError as error:
                yield f"{where}: {ast.unparse(node)}: {error}"


# What asks for values, or for a kernel: tensors on the device meta have neither.
_NEEDS_VALUES = ("print", "cutwheel.explain", "torch.equal", "torch.testing.assert_close")


def needs_values(statement: ast.stmt) -> bool:
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(ast.unparse(call.func) in _NEEDS_VALUES for call in calls)


def _without_values(statements: list[ast.stmt]) -> list[ast.stmt]:
    """Without the statements that need values, in blocks of `with`, `for` and the like, too."""
    kept = []
    for statement in statements:
        inner = getattr(statement, "body", None)
        if isinstance(inner, list) and not isinstance(statement, ast.ClassDef | ast.FunctionDef):
            statement.body = _without_values(inner) or [ast.Pass()]  # type: ignore[attr-defined]
        elif needs_values(statement):
            continue
        kept.append(statement)
    return kept


class _ToMeta(ast.NodeTransformer):
    """The device meta in place of cuda."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return node if ast.unparse(node.func) == "torch.autocast" else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.copy_location(ast.Constant("meta"), node) if node.value == "cuda" else node


def run(block: Block, namespace: dict[str, Any], on_gpu: bool) -> None:
    """Args: on_gpu: otherwise on the device meta, without the statements that ask for values."""
    tree = parse(block)
    if not on_gpu:
        tree.body = _without_values(tree.body)
        tree = _ToMeta().visit(tree)
    exec(compile(ast.fix_missing_locations(tree), str(ROOT / block.document), "exec"), namespace)
