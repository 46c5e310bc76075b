"""Tables of measurements for tests, made of what the library says of a GPU."""

from __future__ import annotations

import copy
from typing import Any

from selection import H200, Gpu

EXTENTS = (4096, 4096, 4096)


def gpu_of(gpu: Gpu, name: str = "described") -> dict[str, Any]:
    facts = {"sm_count": gpu.sms, "memory_gb_per_s": gpu.bandwidth}
    return {"name": name, "cc": [gpu.major, gpu.minor], **facts}


def table(*entries: dict[str, Any], gpu: dict[str, Any] | None = None) -> dict[str, Any]:
    """A table of plans that name kernels, which a document has by number."""
    kernels: list[str] = []
    numbered = copy.deepcopy(list(entries))
    for entry in numbered:
        for plan in entry["plans"]:
            if plan[0] not in kernels:
                kernels.append(plan[0])
            plan[0] = kernels.index(plan[0])
    gpu = gpu or gpu_of(H200)
    return {"schema": 1, "gpu": gpu, "kernels": kernels, "entries": numbered}


def measured(answer: dict[str, Any], *ranks: int, us: float = 100.0, **change: Any) -> Any:
    """An entry that says of the plans with these ranks that they are the fastest, in this order."""
    plans = [answer["plans"][rank] for rank in ranks]
    listed = [
        [plan["row"], "along_m", 4, plan["splits"], us * (1 + 0.01 * index)]
        for index, plan in enumerate(plans)
    ]
    return {"request": answer["tuning_request"] | change, "plans": listed}
