"""One method on a list of networks, in a process of its own with a memory limit: what dies, dies alone."""

from __future__ import annotations

import multiprocessing
import os
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from lapae.curvature import blocks, call, diagonal, ggn_blocks, ggn_diagonal, ggn_kfac, kfac, record
from lapae.curvature.likelihoods import Gaussian
from lapae.networks import Autoencoder, mlp
from lapae.networks.adapt import adapt
from lapae_paper.bench.measure import Work, peak_bytes, seconds_of, take_turns, typical
from lapae_paper.bench.peers import installed_peers
from lapae_paper.variants.networks import paper_celeba, paper_fashion

OURS = ("approx", "mc", "sketch", "mixed", "bottleneck", "kfac", "kfac exact", "exact", "block")
START_SECONDS = 120.0


@dataclass(frozen=True)
class Case:
    """A network: dense, fashion, celeba, kl, convolutions, or these with a code of two numbers in their middle
    (autoencoder).

    The last two come with the side of their images. `kl` is a small AutoencoderKL of diffusers, with attention, group
    normalisation and skip connections, on images of 32x32.
    """

    network: str
    size: int = 28
    batch_size: int | None = None
    """Samples per batch; default: 64 small images or vectors, 8 otherwise."""

    def build(self, device: torch.device) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        many, few = self.batch_size or 64, self.batch_size or 8
        if self.network == "dense":
            module, x = mlp((784,), 2), torch.rand(many, 784)
        elif self.network == "fashion":
            module, x = paper_fashion(), torch.rand(many, 1, 28, 28)
        elif self.network == "celeba":
            module, x = paper_celeba(), torch.rand(few, 3, 64, 64)
        elif self.network == "kl":
            module, x = autoencoder_kl(), torch.rand(few, 3, 32, 32)
        else:
            x = torch.rand(few, 3, self.size, self.size)
            layers: list[nn.Module] = []
            for _ in range(5):
                layers += [nn.Conv2d(3, 3, 3, padding=1), nn.Tanh()]
            if self.network == "autoencoder":
                n = x[0].numel()
                layers[4:4] = [nn.Flatten(), nn.Linear(n, 2), nn.Linear(2, n), nn.Unflatten(1, x.shape[1:]), nn.Tanh()]
            module = nn.Sequential(*layers[:-1])
        return module.to(device), x.to(device)


def autoencoder_kl() -> nn.Module:
    """Build an AutoencoderKL of 400,000 weights; its code is the mean, (2, 16, 16)."""
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL

    # Their annotations ask for tuples of one element.
    sizes: dict[str, Any] = {
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "block_out_channels": (16, 32),
    }
    model = AutoencoderKL(**sizes, norm_num_groups=8, latent_channels=2)
    return Autoencoder(*adapt(model.eval(), (3, 32, 32)))


@dataclass(frozen=True)
class Limits:
    """Limits of one method, and how long to measure it."""

    device: str
    threads: int
    seconds: float
    """Seconds to measure a network."""
    call_seconds: float
    """Seconds of one call; larger networks are not tried after one that took longer."""
    memory_bytes: int
    """Bytes beyond what the process holds before."""


def run_limited(method: str, cases: Sequence[Case], limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield one result per case: network, size, method, ms, base_ms, ratio, shared_ratio, bytes, base_bytes.

    A case that fails has `failed` instead of numbers. Cases of one network are in the order of their size; after a
    failure the larger ones are left out.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lapae_paper.bench.limited"])  # so that a process need not import torch
    failed: set[str] = set()
    waiting = list(cases)
    while waiting:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_worker, args=(theirs, method, waiting, limits), daemon=True)
        process.start()
        theirs.close()
        while waiting:
            case = waiting[0]
            result = _receive(ours, START_SECONDS + 4 * limits.call_seconds + 4 * limits.seconds)
            waiting = waiting[1:]
            yield {"network": case.network, "size": case.size, "method": method, **result}
            if "failed" in result:
                failed.add(case.network)
                waiting = [other for other in waiting if other.network not in failed]
                break  # the process may be in a bad state: the next network gets a new one
        process.kill()
        process.join()


def _receive(pipe: Connection, seconds: float) -> dict[str, Any]:
    if not pipe.poll(seconds):
        return {"failed": "time"}
    try:
        return pipe.recv()
    except EOFError:
        return {"failed": "memory"}  # killed by the system


def _worker(pipe: Connection, method: str, cases: Sequence[Case], limits: Limits) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # peers warn and the profiler reports; what matters goes by the pipe
    torch.set_num_threads(limits.threads)
    device = torch.device(limits.device)
    _limit_memory(device, limits.memory_bytes)
    for case in cases:
        try:
            pipe.send(_measure(method, case, device, limits))
        except Exception as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            memory = isinstance(error, MemoryError) or "memory" in text.lower()
            pipe.send({"failed": "memory" if memory else f"not supported ({text[:100]})"})
            return
    pipe.close()


def _limit_memory(device: torch.device, n_bytes: int) -> None:
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, n_bytes / total))
        return
    with open("/proc/self/statm", "rb") as file:  # pages of address space in use, libraries included
        held = int(file.read().split()[0]) * resource.getpagesize()
    limit = held + n_bytes + (1 << 30)  # libraries that are yet to be loaded
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _measure(method: str, case: Case, device: torch.device, limits: Limits) -> dict[str, Any]:
    module, x = case.build(device)
    base = _forward_backward(module, x)
    works = {"base": base} | _works(method, module, x)
    base()
    first = seconds_of(works["alone"])
    if first > limits.call_seconds:
        return {"ms": 1e3 * first, "ratio": first / seconds_of(base), "failed": "time"}
    seconds = {name: typical(times) for name, times in take_turns(works, limits.seconds).items()}
    return {
        "ms": 1e3 * seconds["alone"],
        "base_ms": 1e3 * seconds["base"],
        "ratio": seconds["alone"] / seconds["base"],
        "shared_ratio": seconds["shared"] / seconds["base"] if "shared" in seconds else None,
        "bytes": peak_bytes(works["alone"], device),
        "base_bytes": peak_bytes(base, device),
    }


def _forward_backward(module: nn.Module, x: Tensor) -> Work:
    parameters = list(module.parameters())

    def work() -> None:
        torch.autograd.grad(-Gaussian().log_prob(module(x), x).sum(), parameters)

    return work


def _works(method: str, module: nn.Module, x: Tensor) -> dict[str, Work]:
    """Return the method with its own forward pass ("alone"), and ours on the forward pass of the loss ("shared")."""
    if method not in OURS:
        return {"alone": installed_peers()[method](module, x)}
    likelihood = Gaussian()
    if method == "sketch":
        run = call(module, x)
        return {
            "alone": lambda: ggn_diagonal(module, x, likelihood, "sketch"),
            "shared": lambda: diagonal(run, likelihood, "sketch"),
        }
    with torch.no_grad():
        tape = record(module, x)
    if method.startswith("kfac"):
        n_samples = None if method == "kfac exact" else 1
        return {
            "alone": lambda: ggn_kfac(module, x, likelihood, n_samples=n_samples),
            "shared": lambda: kfac(tape, likelihood, n_samples=n_samples),
        }
    if method == "block":
        return {"alone": lambda: ggn_blocks(module, x, likelihood), "shared": lambda: blocks(tape, likelihood)}
    return {
        "alone": lambda: ggn_diagonal(module, x, likelihood, method),  # pyright: ignore[reportArgumentType]
        "shared": lambda: diagonal(tape, likelihood, method),  # pyright: ignore[reportArgumentType]
    }


def today() -> str:
    """Return the date, for a record of results."""
    return time.strftime("%Y-%m-%d")
