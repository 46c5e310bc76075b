"""Tables that are refused, and those that the environment names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from selection import A100, H200, explain
from tuning_tables import EXTENTS, gpu_of, measured, table

cutwheel = pytest.importorskip("cutwheel", reason="needs the built package (make test builds it)")

narrow = pytest.mark.skipif(
    bool(os.environ.get("CUTWHEEL_NARROW")),
    reason="the built package holds a selection of the declared kernels",
)
pytestmark = narrow


@pytest.fixture(autouse=True)
def _cleared() -> Iterator[None]:
    yield
    cutwheel.clear_tuning()


# ---- what is refused


def good() -> dict[str, Any]:
    return table(measured(explain(H200, *EXTENTS), 5, 3))


REFUSED: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda t: t.update(schema=2), r"schema is 2, and this cutwheel reads 1"),
    (lambda t: t.pop("schema"), r"schema is None"),
    (lambda t: t.pop("gpu"), r"table\.gpu is missing"),
    (lambda t: t["gpu"].pop("sm_count"), r"table\.gpu\.sm_count is missing"),
    (lambda t: t["gpu"].update(cc=[9]), r"table\.gpu\.cc is \[9\]; expected a list of 2"),
    (lambda t: t.update(surprise=1), r"table\.surprise is not known"),
    (lambda t: t["kernels"].__setitem__(0, "gemm_gone"), r"kernel gemm_gone is not in this wheel"),
    (lambda t: t["entries"][0]["plans"][0].__setitem__(0, 9), r"plans\[0\]\[0\] is 9; expected"),
    (lambda t: t["entries"][0]["plans"][0].__setitem__(1, "up"), r"plans\[0\]\[1\] is 'up'"),
    (lambda t: t["entries"][0]["plans"][0].__setitem__(2, 0), r"plans\[0\]\[2\] is 0"),
    (
        lambda t: t["entries"][0]["plans"][0].__setitem__(2, 2**30),
        r"plans\[0\]\[2\] is 1073741824; expected a whole number of at least 1 and at most 64",
    ),
    (
        lambda t: t["entries"][0]["plans"][0].__setitem__(3, 16385),
        r"plans\[0\]\[3\] is 16385; expected a whole number of at least 1 and at most 16384",
    ),
    (lambda t: t["entries"][0]["plans"][1].__setitem__(4, -1.0), r"plans\[1\]\[4\] is -1\.0"),
    (lambda t: t["entries"][0]["plans"].clear(), r"entries\[0\]\.plans is \[\]"),
    (lambda t: t["entries"][0]["request"].update(a="bf17"), r"request\.a is 'bf17'; expected one"),
    (lambda t: t["entries"][0]["request"].update(m=0), r"request\.m is 0; expected a whole number"),
    (lambda t: t["entries"][0]["request"].update(m=1.5), r"request\.m is 1\.5"),
    (lambda t: t["entries"][0]["request"].pop("k"), r"request\.k is missing"),
    (lambda t: t["entries"][0]["request"].update(depth=1), r"request\.depth is not known"),
    (
        lambda t: t["entries"][0]["request"].update(addend="other", epilogue="gone"),
        r'epilogue is "gone", which this wheel does not have',
    ),
    (lambda t: t["entries"][0]["request"].update(addend="other"), r"request\.epilogue is missing"),
]


@pytest.mark.parametrize(("damage", "message"), REFUSED, ids=[text for _, text in REFUSED])
def test_a_table_that_is_none_is_refused_with_the_field(
    damage: Callable[[dict[str, Any]], Any], message: str
) -> None:
    document = good()
    damage(document)
    with pytest.raises(ValueError, match=message):
        cutwheel.load_tuning(document)
    assert explain(H200, *EXTENTS)["choice"] == "cost model"


def test_a_kernel_that_computes_no_product_is_refused() -> None:
    document = good()
    reduce = next(k.name for k in cutwheel.kernels() if k.family == "splitk_reduce")
    document["kernels"][0] = reduce
    with pytest.raises(ValueError, match="computes no product"):
        cutwheel.load_tuning(document)


@pytest.mark.parametrize(("word", "value"), [("swizzle", 65), ("splits", 16385)])
def test_the_library_bounds_plans_itself(word: str, value: int) -> None:
    """Whoever hands it lines has not gone through the parser of documents."""
    from cutwheel.tuning import lines_of
    from cutwheel.tuning.table import parse

    found = parse(good(), "table")
    (entry,) = found.entries
    damaged = replace(entry, plans=(replace(entry.plans[0], **{word: value}),))
    text = lines_of(replace(found, entries=(damaged,)))
    with pytest.raises(RuntimeError, match=rf"\(plan\): {word} is {value}, and at most"):
        torch.ops.cutwheel._load_tuning(text)


def test_a_refused_table_leaves_the_loaded_one() -> None:
    before = explain(H200, *EXTENTS)
    cutwheel.load_tuning(table(measured(before, 5)))
    with pytest.raises(ValueError, match="schema"):
        cutwheel.load_tuning({"schema": 99})
    assert explain(H200, *EXTENTS)["choice"] == "tuned (exact)"


def test_a_file_is_loaded_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(good()), encoding="utf-8")
    cutwheel.load_tuning(path)
    assert explain(H200, *EXTENTS)["table"] == "mine.json"


def test_a_broken_file_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text('{"schema": 1', encoding="utf-8")
    with pytest.raises(ValueError, match=r"mine\.json is no JSON"):
        cutwheel.load_tuning(str(path))
    with pytest.raises(OSError, match="none"):
        cutwheel.load_tuning(tmp_path / "none.json")


# ---- the environment

ASK = """
import json, sys, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch, cutwheel
print(json.dumps([json.loads(torch.ops.cutwheel._tuning()), [str(w.message) for w in caught]]))
"""


def imported_with(value: str) -> Any:
    package = str(Path(cutwheel.__file__).parents[1])
    environment = os.environ | {"CUTWHEEL_TUNING": value, "PYTHONPATH": package}
    run = subprocess.run(
        [sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, check=True
    )
    tables, warned = json.loads(run.stdout)
    return [t["name"] for t in tables if not t["built_in"]], [
        text for text in warned if "CUTWHEEL_TUNING" in text
    ]


def test_the_environment_names_tables(tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    first.write_text(json.dumps(good()), encoding="utf-8")
    second.write_text(json.dumps(table(gpu=gpu_of(A100, "another"))), encoding="utf-8")
    assert imported_with(f"{first}{os.pathsep}{second}") == (["first.json", "second.json"], [])


def test_a_broken_table_in_the_environment_warns_once_and_dispatch_goes_on(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{}", encoding="utf-8")
    tables, warned = imported_with(str(broken))
    assert tables == []
    (text,) = warned
    assert "broken.json.schema is None" in text
    assert "without this table" in text
    assert imported_with(str(tmp_path / "none.json"))[1]
