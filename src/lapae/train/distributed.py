"""Several processes that train or predict as one: sums over processes, and decisions of the first one.

With one process (no process group), all of this does nothing: `world_size()` is 1, a sum over processes is the tensor
itself, and `from_first` is a plain call.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, _set_pg_timeout

from lapae.config import TrainConfig
from lapae.errors import ElsewhereError
from lapae.methods.step import StepContext, Wait, alone
from lapae.train.devices import own_device
from lapae.train.torchrun import job_rank, job_size, local_rank, restarted

TIMEOUT = timedelta(hours=2)
"""How long a process waits for the others, one of which may be downloading data. Deaths are noticed at once."""
MEETING = timedelta(minutes=2)
"""How long it waits at the start, when all should be present; after that the job fails, and torchrun may restart it."""

BEGUN = "lapae: the run is begun"
"""Key in the store of torchrun's agent."""

T = TypeVar("T")


def world_size() -> int:
    """Return the number of processes that work together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def take_place(options: TrainConfig) -> torch.device:
    """Join the other processes of the job, if there are any, and return the device of this process."""
    device = torch.device(own_device(options.device))
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    join("nccl" if device.type == "cuda" else "gloo")
    return device


def join(backend: str = "gloo") -> None:
    """Join the process group of the processes that torchrun started.

    torchrun's agent keeps the store of process addresses when it restarts them (torch 2.13), so that they could find
    the addresses of processes that no longer exist: each attempt has its own prefix.

    Args:
        backend: gloo for tensors on the CPU, nccl for tensors on GPUs.
    """
    if job_size() == 1 or world_size() > 1:
        return
    if backend == "nccl":
        torch.cuda.set_device(local_rank())
    meeting: dict[str, Any] = {"timeout": MEETING}
    store = _agent_store()
    if store is not None:
        part = PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        meeting |= {"store": part, "rank": job_rank(), "world_size": job_size()}
    dist.init_process_group(backend, **meeting)
    _set_pg_timeout(TIMEOUT)  # all of them are there: from now on they may wait longer for each other


def _agent_store() -> Any:
    """Return the store of torchrun's agent, which outlives the processes; None without one."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, job_size(), is_master=False, timeout=MEETING)  # pyright: ignore


def note_begun() -> None:
    """Tell processes that torchrun may start later that the job has begun its run."""
    store = _agent_store()
    if store is not None:
        store.set(BEGUN, "yes")


def has_begun() -> bool:
    """Return whether torchrun has restarted this job after it had begun its run (always, without a store).

    A job that was refused because the run belongs to another job is refused again.
    """
    store = _agent_store() if restarted() else None
    return restarted() and (store is None or store.check([BEGUN]))


def leave() -> None:
    """Leave the process group."""
    if world_size() > 1:
        dist.destroy_process_group()


def start_sum(tensors: Sequence[Tensor]) -> Wait:
    """Begin to sum tensors (of one type, on one device) over all processes, in place, by one all-reduce of one flat
    buffer; return a function that waits for the sum."""
    if world_size() == 1:
        return alone(tensors)
    tensors = list(tensors)
    in_place = len(tensors) == 1 and tensors[0].is_contiguous()
    flat = tensors[0] if in_place else torch.cat([tensor.reshape(-1) for tensor in tensors])
    work: Any = dist.all_reduce(flat, async_op=True)

    def wait() -> None:
        work.wait()
        if not in_place:
            parts = flat.split([tensor.numel() for tensor in tensors])
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    return wait


def total(tensor: Tensor) -> Tensor:
    """Sum a tensor over all processes, in place, on any device, and return it."""
    if world_size() > 1:
        carried = tensor.to(_device())
        start_sum([carried])()
        tensor.copy_(carried)
    return tensor


def together(generator: torch.Generator | None = None) -> StepContext:
    """Return the context of a step of all processes of this job; its generators have to be seeded.

    `generator` draws the noise of the weights, the same on all processes; None is torch's global generator.
    """
    own = common = None
    if generator is not None and world_size() > 1:
        own, common = torch.Generator(generator.device), torch.Generator(generator.device)
    return StepContext(generator, own, common, rank=rank(), world_size=world_size(), start_sum=start_sum)


def stand_in(x: Tensor) -> Tensor:
    """Return x (B, *shape), or one row of zeros if B is 0: a process without samples takes part with weight zero."""
    return x if len(x) else x.new_zeros(1, *x.shape[1:])


def from_first(make: Callable[[], T]) -> T:
    """Call `make` on the first process, and return its result (plain JSON) on all; if it fails, it fails on all."""
    if world_size() == 1:
        return make()
    message: dict[str, Any] = {}
    failure: Exception | None = None
    if rank() == 0:
        try:
            message = {"value": make()}
        except Exception as error:
            failure, message = error, {"error": str(error)}
    message = json.loads(_broadcast(json.dumps(message).encode()))
    if "error" in message:
        raise failure or ElsewhereError(message["error"])
    return message["value"]


def node_first(make: Callable[[], T]) -> T:
    """Call `make` on every process, first on one process of each machine, because it may download or fill a cache."""
    if world_size() == 1:
        return make()
    first = local_rank() == 0
    found: list[T] = []
    failure: Exception | None = None
    for turn in (True, False):
        if first is turn:
            try:
                found.append(make())
            except Exception as error:
                failure = error
        if int(total(torch.tensor([failure is not None], dtype=torch.int64, device=_device()))):
            raise failure or ElsewhereError("another process could not get the data")
    return found[0]


def copy_from_first(tensor: Tensor) -> None:
    """Copy the values of `tensor` from the first process to all others."""
    if world_size() > 1:
        carried = tensor.to(_device()).contiguous()
        dist.broadcast(carried, 0)
        tensor.copy_(carried)


def lost_connection(error: Exception) -> bool:
    """Return whether an error means that another process has ended."""
    signs = ("connection closed by peer", "connection reset", "connection refused", "broken pipe", "nccl", "gloo")
    return job_size() > 1 and any(sign in str(error).lower() for sign in signs)


def _broadcast(data: bytes) -> bytes:
    size = torch.tensor([len(data)], device=_device())
    dist.broadcast(size, 0)
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8) if rank() == 0 else None
    buffer = (torch.empty(int(size), dtype=torch.uint8) if own is None else own).to(_device())
    dist.broadcast(buffer, 0)
    return buffer.cpu().numpy().tobytes()


def _device() -> torch.device:
    """Return the device of tensors that the process group can exchange."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
