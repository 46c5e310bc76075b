"""Several GPUs of one machine: tensor and expert parallelism, overlap, and room for NCCL.

`launch` starts a process for each GPU and keeps what they have measured when one of them dies or
hangs; `worker` is what a process does. `team` is the group of processes as the benchmarks see it
and `timing` the clock; the other modules have the problems of a section each.
"""

SECTIONS = ("tensor_parallel", "overlap", "sms", "expert_parallel", "faults")
"""in the order that they are measured in"""
STALL_SECONDS = 45.0  # for one problem, and for processes to start
