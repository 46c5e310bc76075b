"""Checks of TOML shapes that collect errors instead of stopping at the first one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class ManifestError(Exception):
    """One thing that is wrong: `file`, `entry` (where in it) and `reason` (what is allowed)."""

    def __init__(self, file: str, entry: str, reason: str) -> None:
        super().__init__(": ".join(filter(None, (file, entry, reason))))
        self.file = file
        self.entry = entry
        self.reason = reason


class InvalidManifestError(Exception):
    """Everything that is wrong with the manifests."""

    def __init__(self, errors: Sequence[ManifestError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = tuple(errors)


class Checker:
    """Checks values of one file at a time; a faulty value is reported once and yields None."""

    def __init__(self) -> None:
        self.file = ""
        self._errors: dict[str, ManifestError] = {}

    def error(self, where: str, reason: str) -> None:
        """Records an error; one line, however many kernels it concerns."""
        error = ManifestError(self.file, where, reason)
        self._errors.setdefault(str(error), error)

    def raise_errors(self) -> None:
        if self._errors:
            raise InvalidManifestError(list(self._errors.values()))

    def one_of(self, where: str, what: str, value: Any, allowed: Mapping[str, T]) -> T | None:
        if isinstance(value, str) and value in allowed:
            return allowed[value]
        self.error(where, f"unknown {what} {value!r}; allowed: {', '.join(allowed)}")
        return None

    def name(self, where: str, what: str, value: Any, allowed: Iterable[str]) -> str | None:
        return self.one_of(where, what, value, {name: name for name in allowed})

    def positive(self, where: str, value: Any) -> int | None:
        if _is_positive(value):
            return int(value)
        self.error(where, f"must be a positive integer, not {value!r}")
        return None

    def flag(self, where: str, value: Any) -> bool | None:
        if isinstance(value, bool):
            return value
        self.error(where, f"must be true or false, not {value!r}")
        return None

    def shape(self, where: str, value: Any) -> tuple[int, int, int] | None:
        if isinstance(value, list) and len(value) == 3 and all(map(_is_positive, value)):
            return (value[0], value[1], value[2])
        self.error(where, f"must be three positive integers [M, N, K], not {value!r}")
        return None

    def table(self, where: str, value: Any) -> bool:
        if not isinstance(value, dict):
            self.error(where, f"must be a table, not {value!r}")
        return isinstance(value, dict)

    def keys(
        self,
        where: str,
        table: Mapping[str, Any],
        required: Iterable[str] = (),
        optional: Iterable[str] = (),
    ) -> bool:
        """Whether `table` has every required key and no key beyond the optional ones."""
        allowed = (*required, *optional)
        unknown = [key for key in table if key not in allowed]
        missing = [key for key in required if key not in table]
        for key in unknown:
            self.error(where, f"unknown key {key!r}; allowed: {', '.join(allowed)}")
        for key in missing:
            self.error(where, f"key {key!r} is missing")
        return not unknown and not missing

    def items(self, where: str, entry: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
        """The different items of the list `entry[key]`, each with its place."""
        values = entry.get(key, ())  # a missing key is reported by keys()
        if key in entry and (not isinstance(values, list) or not values):
            self.error(where, f"{key} must be a list of at least one item, not {values!r}")
            return
        for index, value in enumerate(values):
            at, first = f"{where}, {key}[{index}]", values.index(value)
            if first < index:
                self.error(at, f"repeats {key}[{first}]")
            else:
                yield at, value


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
