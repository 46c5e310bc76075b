"""The Python code of the documents runs: on a GPU as it stands, elsewhere on the device meta, where
tensors have shapes, dtypes and strides, and no elements."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from doc_blocks import DOCUMENTS, Block, blocks, problems, run

torch = pytest.importorskip("torch")

WITH_CODE = [document for document in DOCUMENTS if blocks(document)]
# Blocks that are parts of a reference, and go on with names of their readers.
GIVEN = {
    "docs/determinism.md": """
import torch, cutwheel
x = torch.randn(32, 4096, device="cuda", dtype=torch.bfloat16)
weight = torch.randn(11008, 4096, device="cuda", dtype=torch.bfloat16)
""",
    "docs/scaled.md": """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
model = model.to("cuda", torch.bfloat16)
""",
}


# An epilogue that a page declares, and the wheel lacks.
DECLARED_THERE = "bias_relu_squared"


def code(document: str) -> list[Block]:
    """Blocks that run."""
    return [block for block in blocks(document) if DECLARED_THERE not in block.source]


def prepared(document: str, device: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "document"}
    exec(GIVEN.get(document, "").replace("cuda", device), namespace)
    return namespace


def test_the_blocks_are_found() -> None:
    assert {"README.md", "docs/quick-start.md", "docs/tasks/linear.md"} <= {*WITH_CODE}
    assert sum(len(blocks(document)) for document in WITH_CODE) > 35


@pytest.mark.parametrize("document", WITH_CODE)
def test_names_and_arguments_exist(cutwheel: ModuleType, document: str) -> None:
    found = [text for block in blocks(document) for text in problems(block, cutwheel)]
    assert not found, "\n".join(found)


def test_a_wrong_name_and_a_wrong_argument_are_seen(cutwheel: ModuleType) -> None:
    source = "cutwheel.mn(a, b)\ncutwheel.nn.Linear(1, 2, gelu=True)\ncutwheel.mm(a, *b)\n"
    found = sorted(problems(Block("x.md", 5, source), cutwheel))
    assert [text.partition(": ")[0] for text in found] == ["x.md:5", "x.md:6"]


@pytest.fixture
def restored(cutwheel: ModuleType):
    yield
    cutwheel.set_batch_invariant(False)
    cutwheel.clear_tuning()


@pytest.mark.parametrize("document", WITH_CODE)
def test_shapes(cutwheel: ModuleType, restored: None, document: str) -> None:
    namespace = prepared(document, "meta")
    for block in code(document):
        run(block, namespace, on_gpu=False)


@pytest.mark.gpu
@pytest.mark.parametrize("document", WITH_CODE)
def test_on_a_gpu(
    cutwheel: ModuleType,
    restored: None,
    document: str,
    device: str,
    tmp_path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # blocks may write files
    namespace = prepared(document, device)
    for block in code(document):
        run(block, namespace, on_gpu=True)
