"""Do the kernels of two wheels run the same instructions on the GPU?

    python tools/wheel/same_code.py OLD.whl NEW.whl [--kernels 'gemm_sm90a_*']

Checks a change of sources that must leave the machine code as it is, where no GPU can run it. A
kernel is

- identical: instruction for instruction;
- equivalent: as many instructions of each kind, in another order or other registers;
- near: fewer than --near instructions more or less of any kind, and the same ones of tensor cores,
  of memory and of synchronisation;
- different: all else, which is listed.

Padding does not count. Needs cuobjdump and nvdisasm (requirements/test.txt).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from wheelcheck.fatbin import EXTRACTED, KernelId, extract

LIBRARY = "cutwheel/_C.so"
SECTION = re.compile(r"\s*\.section\s+\.text\.([\w$]+)")
# "/*01a0*/  @!P0 HGMMA.64x80x16.F32.BF16 R24, gdesc[UR8], R24, UP0 ;", and the bits behind it.
INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)([^;]*);")
# What computes with tensor cores, and what others see: memory, barriers, control of warps.
EFFECTS = re.compile(
    r"([HQI]G?MMA|LD|ST|ATOM|RED|UTMA|UBLK|SYNCS|BAR|MEMBAR|FENCE|WARP|DEPBAR|ACQBULK|PREEXIT|CCTL"
    r"|USETMAXREG|SHFL|MUFU|EXIT)"
)
# Spills, constants and parameters are loaded as the compiler likes.
OWN = re.compile(r"(LDC|LDCU|LDL|STL)\b")
PADDING = "NOP"

Code = list[tuple[str, str]]  # instruction, operands


def nvdisasm() -> Path:
    try:
        files = metadata.files("nvidia-cuda-nvdisasm") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "nvdisasm":
            return Path(str(file.locate()))
    raise FileNotFoundError("nvdisasm not found: pip install nvidia-cuda-nvdisasm")


def parse(text: str) -> dict[str, Code]:
    """The instructions of each function of a disassembly."""
    found: dict[str, Code] = {}
    code: Code = []
    for line in text.splitlines():
        if section := SECTION.match(line):
            code = found.setdefault(section[1], [])
        elif (instruction := INSTRUCTION.match(line)) and instruction[1] != PADDING:
            code.append((instruction[1], instruction[2].strip()))
    return found


def compare(old: Code, new: Code, near: int) -> str:
    if old == new:
        return "identical"
    before, after = (Counter(kind for kind, _ in code) for code in (old, new))
    if before == after:
        return "equivalent"
    changed = (before - after) + (after - before)
    effects = [kind for kind in changed if EFFECTS.match(kind) and not OWN.match(kind)]
    return "near" if not effects and max(changed.values()) < near else "different"


def disassembled(wheel: Path, pattern: str, folder: Path) -> Iterator[tuple[KernelId, Code]]:
    with zipfile.ZipFile(wheel) as archive:
        library = Path(archive.extract(LIBRARY, folder))
    extract(library, folder, "-xelf")
    cubins = [path for path in sorted(folder.iterdir()) if EXTRACTED.search(path.name)]
    tool = str(nvdisasm())

    def run(cubin: Path) -> str:
        command = [tool, "-c", str(cubin)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with ThreadPoolExecutor() as pool:
        for cubin, text in zip(cubins, pool.map(run, cubins), strict=True):
            found = EXTRACTED.search(cubin.name)
            assert found
            for name, code in parse(text).items():
                if fnmatch(name, pattern):
                    yield KernelId(found[1].replace("_", ""), name), code


def difference(old: Code, new: Code) -> str:
    before, after = (Counter(kind for kind, _ in code) for code in (old, new))
    kinds = sorted({*before, *after}, key=lambda kind: -abs(after[kind] - before[kind]))
    told = [f"{kind} {after[kind] - before[kind]:+d}" for kind in kinds[:8]]
    return ", ".join(each for each in told if not each.endswith("+0"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--kernels", default="*", help="glob of names")
    parser.add_argument("--near", type=int, default=16, help="instructions of a kind")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        old = dict(disassembled(options.old, options.kernels, Path(one)))
        new = dict(disassembled(options.new, options.kernels, Path(two)))
    for kernel in sorted(old.keys() ^ new.keys()):
        print(f"{kernel}: in the {'old' if kernel in old else 'new'} wheel alone")
    counts: Counter[str] = Counter()
    for kernel in sorted(old.keys() & new.keys()):
        how = compare(old[kernel], new[kernel], options.near)
        counts[how] += 1
        if how == "different":
            print(f"{kernel}: {difference(old[kernel], new[kernel])}")
    print(", ".join(f"{count} {how}" for how, count in counts.most_common()) or "no kernel")
    return bool(counts["different"] or old.keys() ^ new.keys() or not counts)


if __name__ == "__main__":
    sys.exit(main())
