"""The checks, in the order of the report: each takes the wheel and returns its detail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wheelcheck import binary, kernels, package, sbom
from wheelcheck.archive import Wheel
from wheelcheck.failure import Failure


@dataclass(frozen=True)
class Budget:
    wheel_mb: float = 15.0
    # Accurate float32 functions, inlined for each of a thread's elements, take the most.
    kernel_kb: float = 192.0


@dataclass(frozen=True)
class Result:
    name: str
    ok: bool
    detail: str


Check = Callable[[Wheel], str]


def checks(budget: Budget) -> list[tuple[str, Check]]:
    return [
        ("file tag", package.file_tag),
        ("platform symbols", binary.platform_symbols),
        ("needed libraries", binary.needed_libraries),
        ("cuda symbols", binary.cuda_symbols),
        ("rpath", binary.rpath),
        ("exports", binary.exports),
        ("torch stable abi", binary.torch_stable_abi),
        ("cubins", kernels.cubins),
        ("unknown kernels", kernels.unknown_kernels),
        ("ptx", kernels.ptx),
        ("no plain sm_90", kernels.no_plain_sm90),
        ("no ptx of sm_90a", kernels.no_architecture_specific_ptx),
        ("driver", kernels.driver),
        ("kernel size", lambda wheel: kernels.kernel_size(wheel, budget.kernel_kb)),
        ("wheel size", lambda wheel: package.wheel_size(wheel, budget.wheel_mb)),
        ("licences", package.licences),
        ("sbom", sbom.sbom),
        ("sources", package.sources),
        ("record", package.record),
        ("grafted libraries", package.grafted_libraries),
    ]


def run_checks(wheel: Wheel, budget: Budget) -> list[Result]:
    results = []
    for name, check in checks(budget):
        try:
            results.append(Result(name, True, check(wheel)))
        except Failure as failure:
            results.append(Result(name, False, str(failure)))
    return results
