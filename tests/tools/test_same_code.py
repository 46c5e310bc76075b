"""Whether two disassemblies are of the same code, told from text and from wheels."""

from __future__ import annotations

from pathlib import Path

import pytest
import same_code
from wheelcheck.fatbin import KernelId

HEAD = """
	.section	.text.kernel_a,"ax",@progbits
.text.kernel_a:
        /*0000*/ LDC R1, c[0x0][0x28] ;
        /*0010*/ S2R R0, SR_TID.X ;
"""
MULTIPLY = "        /*0020*/ @!P0 HGMMA.64x80x16.F32.BF16 R24, gdesc[UR8], R24, UP0 ;\n"
ADD = "        /*0030*/ IADD3 R{0}, R{0}, 0x1, RZ ;\n"
STORE = "        /*0040*/ STG.E.128 desc[UR4][R2.64], R24 ;\n"
END = "        /*0050*/ EXIT ;\n.L_x_1:\n        /*0060*/ NOP ;\n"
PLAIN = HEAD + MULTIPLY + ADD.format(4) + STORE + END


def how(old: str, new: str) -> str:
    first, second = (same_code.parse(text) for text in (old, new))
    assert [*first] == [*second] == ["kernel_a"]
    return same_code.compare(first["kernel_a"], second["kernel_a"], near=3)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (PLAIN, "identical"),
        (PLAIN.replace("NOP ;", "NOP ;\n        /*0070*/ NOP ;"), "identical"),
        (HEAD + ADD.format(4) + MULTIPLY + STORE + END, "equivalent"),
        (PLAIN.replace("R24", "R32"), "equivalent"),
        (HEAD + MULTIPLY + 3 * ADD.format(4) + STORE + END, "near"),
        (PLAIN.replace("LDC R1", "ULDC UR1"), "near"),
        (HEAD + MULTIPLY + 4 * ADD.format(4) + STORE + END, "different"),
        (PLAIN.replace("64x80x16", "64x96x16"), "different"),
        (PLAIN.replace(STORE, ""), "different"),
        (PLAIN.replace("STG.E.128", "STG.E.64"), "different"),
    ],
)
def test_two_kernels(new: str, expected: str) -> None:
    assert how(PLAIN, new) == expected


def test_what_differs_is_told() -> None:
    old, new = (same_code.parse(text)["kernel_a"] for text in (PLAIN, PLAIN + STORE))
    assert same_code.difference(old, new) == "STG.E.128 +1"


def wheel(monkeypatch: pytest.MonkeyPatch, **kernels: dict[str, str]) -> None:
    """Disassemblies in the place of those of wheels."""

    def disassembled(path: Path, pattern: str, folder: Path):  # type: ignore[no-untyped-def]
        for name, text in kernels[path.stem].items():
            code = same_code.parse(text)["kernel_a"]
            yield KernelId("sm90a", name), code

    monkeypatch.setattr(same_code, "disassembled", disassembled)


def test_two_wheels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    moved = PLAIN.replace("R24", "R32")
    wheel(monkeypatch, old={"a": PLAIN, "b": PLAIN}, new={"a": PLAIN, "b": moved})
    assert same_code.main(["old.whl", "new.whl"]) == 0
    assert capsys.readouterr().out == "1 identical, 1 equivalent\n"
    wheel(monkeypatch, old={"a": PLAIN, "b": PLAIN}, new={"a": PLAIN + STORE})
    assert same_code.main(["old.whl", "new.whl"]) == 1
    out = capsys.readouterr().out
    assert "b [sm90a]: in the old wheel alone\n" in out
    assert "a [sm90a]: STG.E.128 +1\n1 different\n" in out
    wheel(monkeypatch, old={}, new={})
    assert same_code.main(["old.whl", "new.whl"]) == 1  # nothing was compared
