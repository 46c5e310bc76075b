"""The processes of a benchmark: each has a GPU, or, in tests, the CPU."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from cutwheel.tuning.measure import Error, Operands

Value = TypeVar("Value")


@dataclass(frozen=True)
class Team:
    rank: int
    size: int
    device: torch.device
    group: Any
    """all of them, over NCCL"""
    control: Any
    """all of them, over gloo: for what the benchmark itself has to say"""
    is_small: bool = False
    """problems of a few elements, for tests"""

    @classmethod
    def join(cls, kind: str, timeout_seconds: float, is_small: bool = False) -> Team:
        """The group that RANK, WORLD_SIZE and MASTER_PORT tell of, as torchrun does.

        Args:
            kind: "cuda" or "cpu"
            timeout_seconds: after which NCCL gives a collective up
        """
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        timeout = timedelta(seconds=timeout_seconds)
        if kind == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
            dist.init_process_group("nccl", device_id=device, timeout=timeout)
            control = dist.new_group(backend="gloo")
        else:
            device = torch.device("cpu")
            dist.init_process_group("gloo", timeout=timeout)
            control = dist.group.WORLD
        return cls(rank, size, device, dist.group.WORLD, control, is_small)

    def leave(self) -> None:
        dist.destroy_process_group()

    @property
    def is_on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def operands(self, seed: int) -> Operands:
        """The same numbers in all processes, if all make the same ones."""
        torch.manual_seed(seed)
        l2_bytes = 1
        if self.is_on_gpu:
            l2_bytes = torch.cuda.get_device_properties(self.device).L2_cache_size
        return Operands(self.device, l2_bytes)

    def gather(self, value: Value) -> list[Value]:
        """The values of all processes, by rank; over the CPU."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self.control)
        return found

    def synchronize(self) -> None:
        if self.is_on_gpu:
            torch.cuda.synchronize()

    def barrier(self) -> None:
        """Nothing runs on any GPU, and all processes are here."""
        self.synchronize()
        dist.barrier(self.control)

    def largest(self, error: Error) -> Error:
        return Error.largest(self.gather(error))

    def part(self, tensor: torch.Tensor, dim: int = 0) -> torch.Tensor:
        """This process's part of a tensor that is split along `dim`."""
        return tensor.chunk(self.size, dim)[self.rank].contiguous()
