#!/usr/bin/env python3
"""The oldest NVIDIA driver that loads device code, from how the code is stored.

    python tools/wheel/driver_floor.py --cuda 12.8 --compression zstd    12040;550.54.14

Three things decide: the ABI of the cubins, the compression of the fatbins, and the major version
of the CUDA runtime, which is linked statically. CMake asks with what it compiles with, and
tools/wheel/verify.py with what it finds in the file. The version of the PTX decides nothing here:
a driver that finds a cubin for its GPU does not read it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import NamedTuple


class Driver(NamedTuple):
    cuda: int  # as cuDriverGetVersion counts: 12040 is CUDA 12.4
    release: str  # the first one for Linux that supports it

    def __str__(self) -> str:
        # cuda/core/driver.cpp says it to users in these words, and verify.py looks for them.
        return f"driver {self.release} or newer (CUDA {self.cuda // 1000}.{self.cuda % 1000 // 10})"


# The releases are those of the first toolkit of each version: CUDA Toolkit Release Notes, table 3.
CUDA_12_0 = Driver(12000, "525.60.13")
CUDA_12_4 = Driver(12040, "550.54.14")
CUDA_13_0 = Driver(13000, "580.65.06")

# Every driver of a major version runs all runtimes of it: minor version compatibility.
RUNTIME = {12: CUDA_12_0, 13: CUDA_13_0}
# e_ident[EI_ABIVERSION] of a cubin.
CUBIN_ABI = {7: CUDA_12_0, 8: CUDA_13_0}
COMPRESSION = {"none": CUDA_12_0, "lz4": CUDA_12_0, "zstd": CUDA_12_4}
# The same as bits in the header of a fatbin's entry.
LZ4, ZSTD = 0x2000, 0x8000


def compression_of(flags: int) -> str:
    return "zstd" if flags & ZSTD else "lz4" if flags & LZ4 else "none"


def of_build(cuda: str, compression: str) -> Driver:
    """What a compiler of this release needs: of CUDA 12, cubins have ABI 7, since 13 ABI 8."""
    major = int(cuda.partition(".")[0])
    return max(RUNTIME[major], COMPRESSION[compression])


def of_code(abis: Iterable[int], compressions: Iterable[str]) -> Driver:
    """What the device code in a file needs.

    Raises:
        KeyError: an ABI that is not in CUBIN_ABI
    """
    needed = [*(CUBIN_ABI[abi] for abi in abis), *(COMPRESSION[name] for name in compressions)]
    return max(needed, default=CUDA_12_0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("--cuda", required=True, help="release of the compiler, such as 12.8")
    parser.add_argument("--compression", required=True, choices=COMPRESSION)
    arguments = parser.parse_args()
    try:
        floor = of_build(arguments.cuda, arguments.compression)
    except KeyError:
        known = ", ".join(map(str, RUNTIME))
        parser.error(
            f"--cuda {arguments.cuda}: expected a release of CUDA {known}; add the first"
            " driver of the new one to RUNTIME, and the ABI of its cubins to CUBIN_ABI"
        )
    print(floor.cuda, floor, sep=";")


if __name__ == "__main__":
    main()
