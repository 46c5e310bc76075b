#!/usr/bin/env python3
"""Hold the public interface against its lock: `schema_lock.py --check | --write | --release`.

tests/schemas.lock has what others call: the schemas of torch.ops.cutwheel, the signatures of what
cutwheel.__all__ names, the modules' state dicts and the epilogues, which are called by name. A
change of it has to show in a diff of the lock, and has to fit the version that it is released in.

Each change since the last release is one of three kinds:

  breaks  A caller or a saved file has to change. Something public is removed or renamed. A
          parameter moves, becomes required or keyword-only, or has another default or type. A
          result has another type. A module's state dict has other keys or shapes. An epilogue is
          other than it was in any way: its text is compared, not what it means.
  adds    All callers go on working: a new op, function, class, method, field or epilogue; a new
          parameter with a default, behind the positional ones or keyword-only; a default where
          there was none; a parameter's type that takes more (`X` to `X | None`), a result's that
          is one of fewer.
  free    Nobody can depend on it: ops with a leading underscore, another spelling of a type, names
          of positional-only parameters, the order and the defaults of a dataclass's fields (our
          dataclasses are results: callers read them by name and do not build them).

What a version may hold, compared with the last release:

  1.2.3 -> 2.0.0          breaks, adds      0.2.3 -> 0.3.0 or 1.0.0    breaks, adds
  1.2.3 -> 1.3.0          adds              0.2.3 -> 0.2.4             neither
  1.2.3 -> 1.2.4          neither           0.0.3 -> 0.0.4             breaks, adds

"released": true says that the lock is that of a release. The first change after it makes the lock
one of a version in the making; "last_release" then keeps what that release had instead (null:
nothing), so a second rewriting cannot hide what the first one did. Before the first release, any
change needs nothing but the lock rewritten. `--release` marks the lock; it belongs to the commit
that is tagged.

For ops, torch's own checker of schemas has the last word where it is the stricter one: it refuses a
new keyword-only argument before an older one, for example, as compiled callers pass arguments by
position. It gives no reasons, so what has changed is found out here.

The lock depends neither on the torch nor on the Python that wrote it: numbers in schemas are
written one way, and annotations are the source's text, in which Tensor is torch.Tensor. Not in it:
names of activations, texts of errors, dtypes and layouts an epilogue has kernels for.

Exit status: 0 the lock holds, 1 it does not, 2 the package or the lock cannot be read.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from schema_changes import (
    SECTIONS,
    Change,
    Interface,
    allowed,
    compare,
    next_version,
    release,
)

LOCK = Path(__file__).parents[2] / "tests" / "schemas.lock"
COMMAND = "make schemas"


class LockError(Exception):
    """The package, or the lock, cannot be read."""


# --- what a package has


def schema_text(schema: str) -> str:
    """The schema, in the same words whatever version of torch has printed it."""

    def numbers(found: re.Match[str]) -> str:
        text = re.sub(r"\d[\d.]*(?:e[-+]?\d+)?", lambda number: repr(float(number[0])), found[3])
        return f"{found[1]} {found[2]}={text}"

    schema = re.sub(r"'([^'\"]*)'", r'"\1"', schema)
    return re.sub(r"\b(float(?:\[\d*\])?\??) (\w+)=(\[[^\]]*\]|[^,)]+)", numbers, schema)


def _ops() -> dict[str, Any]:
    schemas = import_module("torch")._C._jit_get_all_schemas()
    texts = [schema_text(str(s)) for s in schemas if s.name.startswith("cutwheel::")]
    return {text[len("cutwheel::") : text.index("(")]: text for text in texts}


_BARE_TENSOR = re.compile(r"(?<![.\w])Tensor\b")
"""torch's class, imported by its name: how a module spells it is none of the interface"""


def _annotation(annotation: object, where: str) -> str:
    if not isinstance(annotation, str):
        raise LockError(f"{where}: no annotation as text (from __future__ import annotations)")
    return _BARE_TENSOR.sub("torch.Tensor", " ".join(annotation.split()))


def _default(value: object, where: str) -> str:
    text = repr(value)
    if " at 0x" in text:
        raise LockError(f"{where}: the default {text} has no lasting text")
    return f" = {text}"


def signature_text(function: Callable[..., Any], where: str, is_method: bool = False) -> list[str]:
    """A parameter a line, as a `def` has them, and the result."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[is_method:]
    lines: list[str] = []
    for index, parameter in enumerate(parameters):
        kind, name = parameter.kind, f"{where}, {parameter.name}"
        if kind is kind.KEYWORD_ONLY and not any(line.startswith("*") for line in lines):
            lines.append("*")
        stars = {kind.VAR_POSITIONAL: "*", kind.VAR_KEYWORD: "**"}.get(kind, "")
        text = f"{stars}{parameter.name}: {_annotation(parameter.annotation, name)}"
        if parameter.default is not parameter.empty:
            text += _default(parameter.default, name)
        lines.append(text)
        following = parameters[index + 1].kind if index + 1 < len(parameters) else None
        if kind is kind.POSITIONAL_ONLY and following is not kind:
            lines.append("/")
    return [*lines, f"-> {_annotation(signature.return_annotation, f'{where}, result')}"]


def _fields(cls: type) -> list[str]:
    texts = []
    for field in fields(cls):
        where = f"{cls.__name__}.{field.name}"
        text = f"{field.name}: {_annotation(field.type, where)}"
        texts.append(text + ("" if field.default is MISSING else _default(field.default, where)))
    return texts


def _state_dicts(cls: type, name: str) -> dict[str, list[str]]:
    """Keys and shapes of a module built with its defaults, and with each flag turned over."""
    parameters = inspect.signature(cls).parameters.values()
    required = [p for p in parameters if p.default is p.empty]
    sizes = dict(zip((p.name for p in required), (11, 13, 17, 19, 23), strict=False))
    if any(str(p.annotation).partition(" | ")[0] != "int" for p in required):
        raise LockError(f"{name} takes more than numbers: teach _state_dicts to build one")
    dims = {size: size_name for size_name, size in sizes.items()}
    variants: dict[str, dict[str, bool]] = {"defaults": {}}
    variants |= {
        f"{p.name}={not p.default}": {p.name: not p.default}
        for p in parameters
        if isinstance(p.default, bool)
    }
    result = {}
    for label, flags in variants.items():
        try:
            state = cls(**sizes, **flags).state_dict()
        except ValueError:
            continue  # a flag that the other defaults do not allow
        shapes = {key: getattr(value, "shape", ()) for key, value in state.items()}
        result[label] = [
            f"{key} [{', '.join(str(dims.get(d, d)) for d in shapes[key])}]" for key in shapes
        ]
    return result


def _class(cls: type, name: str) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    bases = [f"{base.__module__}.{base.__qualname__}" for base in cls.__bases__]
    entry["bases"] = [base for base in bases if base != "builtins.object"]
    if is_dataclass(cls):
        entry["fields"] = _fields(cls)
    methods = {}
    for key, value in sorted(vars(cls).items()):
        is_constructor = key == "__init__" and not is_dataclass(cls)
        if key.startswith("_") and not is_constructor:
            continue
        where, is_static = f"{name}.{key}", isinstance(value, staticmethod)
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(value):
            methods[key] = signature_text(value, where, is_method=not is_static)
    entry["methods"] = methods
    if issubclass(cls, import_module("torch").nn.Module):
        entry["state_dicts"] = _state_dicts(cls, name)
    return {key: value for key, value in entry.items() if value}


def _epilogues(package: ModuleType) -> dict[str, Any]:
    path = Path(str(package.__file__)).with_name("manifest.json")
    try:
        stores = {
            name: ", ".join(f"{key} = {expr}" for key, expr in declared["aux"].items())
            for name, declared in json.loads(path.read_text(encoding="utf-8"))["epilogues"].items()
        }
    except OSError as error:
        raise LockError(f"the package is incomplete: {error}") from error
    return {
        epilogue.name: {
            "expr": " ".join(epilogue.expr.split()),
            "stores": stores[epilogue.name],
            "width": epilogue.width,
            "operands": ", ".join(f"{name}: {kind}" for name, kind in epilogue.operands.items()),
            "product": "yes" if epilogue.has_accum else "no",
        }
        for epilogue in package.epilogues()
    }


def public_names(module: ModuleType, prefix: str = "") -> Interface:
    """The names in `__all__`, and those of each module in it."""
    found: Interface = {section: {} for section in SECTIONS}
    for name in module.__all__:
        value, full = getattr(module, name), f"{prefix}{name}"
        if isinstance(value, ModuleType):
            for section, entries in public_names(value, f"{full}.").items():
                found[section] |= entries
        elif inspect.isclass(value):
            found["classes"][full] = _class(value, full)
        elif callable(value):
            found["functions"][full] = signature_text(value, full)
        else:
            found["values"][full] = type(value).__name__
    return found


def collect(package: ModuleType) -> Interface:
    """The public interface of `package`, which is cutwheel."""
    found = public_names(package)
    found["ops"] = _ops()
    found["epilogues"] = _epilogues(package)
    return {section: dict(sorted(found[section].items())) for section in SECTIONS}


# --- the lock


@dataclass(frozen=True)
class Lock:
    version: str
    released: bool
    interface: Interface
    last_release: tuple[str, Interface] | None = None
    """version and interface of the release before `version`; None before the first one"""

    @property
    def promised(self) -> tuple[str, Interface] | None:
        """Version and interface that the last release promises."""
        return (self.version, self.interface) if self.released else self.last_release

    def text(self) -> str:
        last: dict[str, Any] | None = None
        if self.last_release is not None and not self.released:
            version, interface = self.last_release
            last = {"version": version, "instead": _differences(self.interface, interface)}
        head = {"version": self.version, "released": self.released, "last_release": last}
        return json.dumps({**head, **self.interface}, indent=2, ensure_ascii=False) + "\n"


def _differences(now: Interface, before: Interface) -> Interface:
    """The entries of `before` that differ from what is there now; None: it had none."""
    return {
        section: {
            name: before[section].get(name)
            for name in sorted({*now[section], *before[section]})
            if now[section].get(name) != before[section].get(name)
        }
        for section in SECTIONS
    }


def _before(now: Interface, differences: Interface) -> Interface:
    merged = {section: {**now[section], **differences[section]} for section in SECTIONS}
    return {
        section: {name: entry for name, entry in sorted(entries.items()) if entry is not None}
        for section, entries in merged.items()
    }


def read(path: Path) -> Lock:
    """Raises LockError where there is no lock, or one that says something else."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        interface: Interface = {section: data[section] for section in SECTIONS}
        last, released = data["last_release"], data["released"]
        if not isinstance(released, bool):
            raise TypeError('"released" is neither true nor false')
        release(data["version"])
        before = None if last is None else (last["version"], _before(interface, last["instead"]))
        return Lock(data["version"], released, interface, before)
    except FileNotFoundError:
        raise LockError(
            f"{path} is missing: take it from git; `{COMMAND}` writes one that knows of no release"
        ) from None
    except (KeyError, TypeError, ValueError) as error:
        text = f"{path} is no lock ({type(error).__name__}: {error}): take it from git"
        raise LockError(text) from error


def rewritten(lock: Lock | None, interface: Interface, version: str) -> Lock:
    """The lock after `lock`, of what the package has now."""
    if lock is None:
        return Lock(version, False, interface)
    if lock.released and (lock.version, lock.interface) == (version, interface):
        return lock
    return Lock(version, False, interface, lock.promised)


def _listing(changes: Sequence[Change]) -> str:
    return "\n".join(map(str, sorted(changes, key=lambda change: -change.level)))


def problems(lock: Lock, interface: Interface, version: str) -> list[str]:
    """Why the lock does not hold for a package with this interface and version."""
    found = []
    changes = compare(lock.interface, interface)
    if changes:
        unpromised = "" if lock.promised else "\nNothing is released yet: any of it is allowed."
        found.append(
            f"{LOCK.name} is not what this package, {version}, has:\n{_listing(changes)}"
            f"{unpromised}\nIf this is meant, run `{COMMAND}` and hand in the lock with the change."
        )
    elif not lock.released and lock.version != version:
        found.append(
            f"{LOCK.name} is that of {lock.version}, which is not released, and the package is "
            f"{version}. If {lock.version} was released, write '\"released\": true' into the lock. "
            f"Then run `{COMMAND}`."
        )
    if lock.promised is not None:
        found += _version_problems(*lock.promised, interface, version)
    return found


def _version_problems(last: str, before: Interface, now: Interface, version: str) -> list[str]:
    limit = allowed(last, version)
    if limit is None:
        return [f"The package is {version}, and {last} is released already: raise the version."]
    refused = [change for change in compare(before, now) if change.level > limit]
    if not refused:
        return []
    needed = next_version(last, max(change.level for change in refused))
    return [
        f"{version} may not differ like this from {last}, the last release:\n{_listing(refused)}\n"
        f"Undo it, or set the version in pyproject.toml to {needed} or higher and run `{COMMAND}`."
    ]


# --- command line


def check(path: Path, interface: Interface, version: str) -> list[str]:
    return problems(read(path), interface, version)


def write(path: Path, interface: Interface, version: str) -> list[str]:
    """Rewrites the lock, and says what is wrong with it even so."""
    old = read(path) if path.is_file() else None
    new = rewritten(old, interface, version)
    path.write_text(new.text(), encoding="utf-8")
    changes = compare(old.interface, interface) if old else []
    print("\n".join([f"{path.name} is written", *map(str, changes)]))
    return problems(new, interface, version)


def mark_released(path: Path, interface: Interface, version: str) -> list[str]:
    """Marks a lock that holds as that of a release; else says why not, and writes nothing."""
    found = check(path, interface, version)
    if re.fullmatch(r"[\d.]+", version) is None:
        found.append(f"{version} is a pre-release, which promises nothing: it gets no mark.")
    if not found:
        path.write_text(Lock(version, True, interface).text(), encoding="utf-8")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    mode = parser.add_mutually_exclusive_group(required=True)
    for name, action, text in (
        ("--check", check, "compare the installed package with the lock"),
        ("--write", write, "rewrite the lock from the installed package"),
        ("--release", mark_released, "mark a lock that holds as that of a release"),
    ):
        mode.add_argument(name, action="store_const", const=action, dest="action", help=text)
    parser.add_argument("--lock", type=Path, default=LOCK, metavar="FILE")
    options = parser.parse_args(arguments)
    try:
        package = import_module("cutwheel")
        interface, version = collect(package), str(package.__version__)
        found = options.action(options.lock, interface, version)
    except (ImportError, LockError) as error:
        print(error, file=sys.stderr)
        return 2
    if found:
        print("\n\n".join(found), file=sys.stderr)
        return 1
    counts = ", ".join(f"{len(interface[section])} {section}" for section in SECTIONS)
    print(f"{options.lock.name} holds for {version}: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
