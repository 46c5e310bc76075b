"""The pages of the API reference: which public name is on which of them.

Names come from `__all__` of the package and of its public modules; a name whose module has no page
here is an error. Nothing is imported, so the reference builds without torch and without the
library.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Page, its heading, and the modules whose names are on it.
PAGES = {
    "gemm": ("Matrix products", ("cutwheel.ops.gemm",)),
    "linear": ("Linear layers", ("cutwheel.ops.linear",)),
    "scaled": ("fp8 and int8", ("cutwheel.ops.scaled",)),
    "grouped": ("Groups", ("cutwheel.ops.grouped",)),
    "conv": ("Convolutions", ("cutwheel.ops.conv",)),
    "nn": ("Modules", ("cutwheel.nn",)),
    "distributed": ("Several GPUs", ("cutwheel.distributed",)),
    "fusion": ("Fusing a model", ("cutwheel.fusion",)),
    "models": ("Models of Transformers", ("cutwheel.models",)),
    "interception": ("Behind torch's ops", ("cutwheel.interception",)),
    "inductor": ("torch.compile", ("cutwheel.inductor",)),
    "inspect": ("Inspection", ("cutwheel.inspect", "cutwheel.ops._common.epilogue")),
    "settings": (
        "Settings and tuning",
        (
            "cutwheel.ops._common.batch_invariance",
            "cutwheel.ops._common.sm_limit",
            "cutwheel.tuning",
        ),
    ),
    "errors": ("Errors", ("cutwheel.errors",)),
}
# Public modules; their own names are public, too.
MODULES = ("nn", "errors", "distributed", "models", "inductor")
# A value, not documented by a docstring.
VALUES = ("__version__",)


@dataclass(frozen=True)
class Name:
    public: str
    """as users write it: cutwheel.nn.Linear"""
    module: str
    """that its documentation is on the page of"""


def _tree(package: Path, module: str) -> ast.Module:
    path = package.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _exported(tree: ast.Module) -> list[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            found: list[str] = ast.literal_eval(node.value)
            return found
    raise ValueError("no __all__")


def _imports(tree: ast.Module, module: str) -> dict[str, str]:
    """Modules that names are imported from, relative to a package."""
    return {
        alias.asname or alias.name: f"{module}.{node.module}" if node.module else module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }


def public_names(package: Path) -> Iterator[Name]:
    """Args: package: the folder python/cutwheel."""
    for module in ("cutwheel", *(f"cutwheel.{name}" for name in MODULES)):
        tree = _tree(package, module)
        sources = _imports(tree, module)
        for name in _exported(tree):
            if module == "cutwheel" and name in (*MODULES, *VALUES):
                continue
            yield Name(f"{module}.{name}", sources.get(name, module))


def page_of(name: Name) -> str:
    for page, (_, modules) in PAGES.items():
        if any(name.module == module or name.module.startswith(f"{module}.") for module in modules):
            return page
    raise ValueError(
        f"{name.public}: no page of the API reference has {name.module}; add it to PAGES in "
        "tools/docs/site_reference.py"
    )


def pages(package: Path) -> dict[str, str]:
    """Markdown of each page, by its path in the site."""
    names = list(public_names(package))
    shown: dict[str, list[str]] = {page: [] for page in PAGES}
    for name in names:
        shown[page_of(name)].append(name.public)
    written = {}
    rows = []
    for page, (heading, modules) in PAGES.items():
        introduction = ast.get_docstring(_tree(package, modules[0])) or ""
        blocks = [f"::: {public}\n" for public in shown[page]]
        written[f"reference/{page}.md"] = "\n".join(
            [f"# {heading}\n", f"{introduction}\n", *blocks]
        )
        links = ", ".join(f"[`{x}`]({page}.md#{x})" for x in shown[page])
        rows.append(f"| [{heading}]({page}.md) | {links} |")
    index = ["# API reference\n", "Every public name. `cutwheel.__version__` is the version.\n"]
    written["reference/index.md"] = "\n".join([*index, "| | |", "|---|---|", *rows, ""])
    return written
