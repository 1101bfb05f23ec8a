"""Several processes that train or predict as one: what they add up, and what they agree on.

Where there is one process (nobody has made a process group), all of this does nothing: `world_size()` is 1, a sum over
processes is the tensor itself, and `from_first` is a plain call.
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
from lapae.methods.step import Step, Wait, alone
from lapae.train.devices import own_device
from lapae.train.torchrun import job_rank, job_size, local_rank, restarted

TIMEOUT = timedelta(hours=2)
"""How long a process waits for the others: one of them may be fetching the data. Deaths are noticed at once."""
MEETING = timedelta(minutes=2)
"""How long at the start, where all of them should be there. Then the job fails, and torchrun may start it again."""

BEGUN = "lapae: the run is begun"

T = TypeVar("T")


def world_size() -> int:
    """Processes that work together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def take_place(options: TrainConfig) -> torch.device:
    """The device of this process, after it has met the others where there are some."""
    device = torch.device(own_device(options.device))
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    join("nccl" if device.type == "cuda" else "gloo")
    return device


def join(backend: str = "gloo") -> None:
    """Meet the other processes that torchrun started; gloo exchanges what is on the CPU, nccl what is on GPUs.

    torchrun's agent keeps the store in which processes leave their addresses for those that it starts again (torch
    2.13), so that these may find the addresses of processes that are gone: each attempt has a part of its own.
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
    _set_pg_timeout(TIMEOUT)  # all of them are there: from now on they have time for each other


def _agent_store() -> Any:
    """The store of torchrun's agent, which outlives the processes; None where there is none."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(host, port, job_size(), is_master=False, timeout=MEETING)  # pyright: ignore


def note_begun() -> None:
    """Have the processes that torchrun may start after these know that the job has begun its run."""
    store = _agent_store()
    if store is not None:
        store.set(BEGUN, "yes")


def has_begun() -> bool:
    """Whether this is a job that torchrun has started again after it had begun its run (or may be one, without a
    store). One that was refused, as the run was another job's, is refused again."""
    store = _agent_store() if restarted() else None
    return restarted() and (store is None or store.check([BEGUN]))


def leave() -> None:
    if world_size() > 1:
        dist.destroy_process_group()


def start_sum(tensors: Sequence[Tensor]) -> Wait:
    """Begin to sum `tensors` over all processes, in place; the function that is returned waits for the sum.

    It is one all-reduce of one flat buffer.
    """
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
    """`tensor` summed over all processes, in place, wherever it is."""
    if world_size() > 1:
        carried = tensor.to(_device())
        start_sum([carried])()
        tensor.copy_(carried)
    return tensor


def together(generator: torch.Generator | None = None) -> Step:
    """A step of all processes of this job; `own` and `common` are to be seeded."""
    own = common = None
    if generator is not None and world_size() > 1:
        own, common = torch.Generator(generator.device), torch.Generator(generator.device)
    return Step(generator, own, common, rank=rank(), world_size=world_size(), start_sum=start_sum)


def stand_in(x: Tensor) -> Tensor:
    """x (B, *shape), or a row of zeros where B is 0: a process without data takes part, and counts for nothing."""
    return x if len(x) else x.new_zeros(1, *x.shape[1:])


def from_first(make: Callable[[], T]) -> T:
    """What `make()` gives (plain JSON) on the first process, on all of them. Where it fails, it fails for all."""
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
    """`make()` on every process, on the first of each machine before the others: it may download, or fill a cache."""
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
    """Give `tensor` the values that it has on the first process."""
    if world_size() > 1:
        carried = tensor.to(_device()).contiguous()
        dist.broadcast(carried, 0)
        tensor.copy_(carried)


def send(data: bytes) -> None:
    """Send bytes to the first process, which receives them; waits until it does."""
    dist.send(torch.tensor([len(data)]), 0)
    if data:
        dist.send(_bytes(data), 0)


def receive(source: int) -> bytes:
    """The next bytes that process `source` sends."""
    size = torch.zeros(1, dtype=torch.int64)
    dist.recv(size, source)
    buffer = torch.empty(int(size), dtype=torch.uint8)
    if len(buffer):
        dist.recv(buffer, source)
    return buffer.numpy().tobytes()


def lost_connection(error: Exception) -> bool:
    """Whether an error says that another process has gone away."""
    signs = ("connection closed by peer", "connection reset", "connection refused", "broken pipe", "nccl", "gloo")
    return job_size() > 1 and any(sign in str(error).lower() for sign in signs)


def _broadcast(data: bytes) -> bytes:
    size = torch.tensor([len(data)], device=_device())
    dist.broadcast(size, 0)
    buffer = (_bytes(data) if rank() == 0 else torch.empty(int(size), dtype=torch.uint8)).to(_device())
    dist.broadcast(buffer, 0)
    return buffer.cpu().numpy().tobytes()


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _device() -> torch.device:
    """Where tensors must be for the process group to carry them."""
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
