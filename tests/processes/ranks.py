"""Two processes for a test: forked from a server that has imported everything, so that they start in moments."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import queue
import socket
import traceback
from collections.abc import Callable
from typing import Any

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

CONTEXT = multiprocessing.get_context("forkserver")
PRELOAD = [
    *("lapae.fit", "lapae.cli.train", "lapae.cli.score", "lapae.estimator", "lapae_paper.variants"),
    *("safetensors.torch", "pytest", "tyro._backends", "typeguard", "sklearn.datasets"),
    "torch._dynamo",  # DistributedDataParallel imports it, and a thousand modules with it
]
"""What a process of a test imports otherwise, each one anew: more than a second, where the test takes a tenth."""
CONTEXT.set_forkserver_preload(PRELOAD)
PATIENCE = 180
"""Seconds after which a test that waits for its processes fails: more than these wait for each other at the start."""
TRIES = 5
AGENT = "TORCHELASTIC_USE_AGENT_STORE"


class PortTakenError(Exception):
    """A connection of another program has a port that was free a moment ago."""


def at_a_free_port(meet: Callable[[int], Any]) -> Any:
    """What `meet(port)` returns; at another port where that one is taken. A port cannot be kept for someone else."""
    for attempt in range(TRIES):
        with socket.socket() as listener:
            listener.bind(("", 0))
            port = listener.getsockname()[1]
        try:
            return meet(port)
        except PortTakenError:
            if attempt == TRIES - 1:
                raise


def agent_store() -> TCPStore:
    """A meeting place as torchrun's agent keeps it, at a port that the system chooses."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What torchrun tells a process."""
    ranks = {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
    sizes = {name: str(world_size) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test"}
    return ranks | sizes | where | {AGENT: "True"}


def _work(results: Any, told: dict[str, str], function: Callable, arguments: tuple) -> None:
    os.environ |= told
    faulthandler.dump_traceback_later(PATIENCE - 10)  # where it hangs, should it
    import torch

    torch.set_num_threads(1)
    try:
        outcome, fine = function(*arguments), True
    except BaseException:
        outcome, fine = traceback.format_exc(), False
    results.put((int(told["RANK"]), fine, outcome))
    results.close()
    results.join_thread()
    from lapae.train.distributed import leave

    leave()


def on_processes(function: Callable, *arguments: Any, world_size: int = 2, port: int | None = None) -> list[Any]:
    """What `function(*arguments)` returns (plain values, numpy arrays) in each of the processes of a job.

    They meet at a store that is kept here, as torchrun's agent does, or at `port`, where the first of them keeps it.
    They meet once: a second command in the same processes could find the first one's meeting place still open.
    """
    results, store = CONTEXT.Queue(), agent_store()
    told = [
        environment(rank, world_size, store.port) | ({"MASTER_PORT": str(port), AGENT: "False"} if port else {})
        for rank in range(world_size)
    ]
    processes = [CONTEXT.Process(target=_work, args=(results, its, function, arguments), daemon=True) for its in told]
    for process in processes:
        process.start()
    found = {}
    try:
        while len(found) < world_size:
            rank, fine, outcome = results.get(timeout=PATIENCE)
            if port and "EADDRINUSE" in str(outcome):
                raise PortTakenError
            assert fine, f"process {rank}:\n{outcome}"
            found[rank] = outcome
    except queue.Empty:
        raise AssertionError(f"only processes {sorted(found)} of {world_size} came to an end") from None
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return [found[rank] for rank in range(world_size)]
