"""Two processes for a test: forked from a server that has imported everything, so that they start in moments."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import queue
import random
import socket
import traceback
from collections.abc import Callable
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["lapae.fit", "lapae.cli.score"])
PATIENCE = 180
"""Seconds after which a test that waits for its processes fails: more than these wait for each other at the start."""
PORTS = range(20_000, 32_000)
"""Not among those that the system gives to connections, which could take one before the processes do."""


def free_port() -> int:
    while True:
        port = random.SystemRandom().choice(PORTS)
        with contextlib.suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port


def environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What torchrun tells a process."""
    ranks = {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
    sizes = {name: str(world_size) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
    return ranks | sizes | where


def _work(results: Any, rank: int, world_size: int, port: int, function: Callable, arguments: tuple) -> None:
    os.environ |= environment(rank, world_size, port)
    faulthandler.dump_traceback_later(PATIENCE - 10)  # where it hangs, should it
    import torch

    torch.set_num_threads(1)
    try:
        outcome, fine = function(*arguments), True
    except BaseException:
        outcome, fine = traceback.format_exc(), False
    results.put((rank, fine, outcome))
    results.close()
    results.join_thread()
    from lapae.train.distributed import leave

    leave()


def on_processes(function: Callable, *arguments: Any, world_size: int = 2) -> list[Any]:
    """What `function(*arguments)` returns (plain values, numpy arrays) in each of the processes of a job.

    They meet once: a second command in the same processes could find the first one's meeting place still open.
    """
    results, port = CONTEXT.Queue(), free_port()
    processes = [
        CONTEXT.Process(target=_work, args=(results, rank, world_size, port, function, arguments), daemon=True)
        for rank in range(world_size)
    ]
    for process in processes:
        process.start()
    found = {}
    try:
        while len(found) < world_size:
            rank, fine, outcome = results.get(timeout=PATIENCE)
            assert fine, f"process {rank}:\n{outcome}"
            found[rank] = outcome
    except queue.Empty:
        raise AssertionError(f"only processes {sorted(found)} of {world_size} came to an end") from None
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return [found[rank] for rank in range(world_size)]
