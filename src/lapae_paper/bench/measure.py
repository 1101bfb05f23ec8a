"""Time and memory of functions that are measured in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch

Work = Callable[[], object]


def seconds_of(work: Work) -> float:
    """Measure the wall time of one call, including its work on the GPU."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def take_turns(works: Mapping[str, Work], seconds: float, min_rounds: int = 5) -> dict[str, list[float]]:
    """Call each in turn, for `seconds` in total or `min_rounds`: a slow moment of the machine hits all of them.

    The first calls, which allocate and tune, are not counted.
    """
    first = {name: seconds_of(work) for name, work in works.items()}
    once = sum(first.values())
    if once < seconds:
        once = sum(seconds_of(work) for work in works.values())
    rounds = max(min_rounds, min(200, int(seconds / once))) if once < seconds else 1
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            times[name].append(seconds_of(work))
    return times


def typical(times: Sequence[float]) -> float:
    """Return the mean of the fastest quarter: the cost if nothing else runs on the machine."""
    fastest = sorted(times)[: max(1, len(times) // 4)]
    return sum(fastest) / len(fastest)


def peak_bytes(work: Work, device: torch.device) -> int:
    """Measure the peak of the bytes that torch holds during one call, beyond what it held before."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    # Not torch.profiler, which imports torch's compiler: seconds in every process that measures.
    trace = torch.autograd.profiler.profile(profile_memory=True)
    with trace:
        work()
    live = highest = 0
    assert trace.kineto_results is not None
    for event in trace.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            highest = max(highest, live)
    return highest
