"""Lightning Fabric as training uses it: one process, or several that share every batch (DDP).

The other processes are there already (torchrun, Slurm) or started here. Their number changes how fast a step is and
nothing else: the batches are the same, gradients are means and curvatures sums over all of their data.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from lapae.config import TrainConfig
from lapae.train.devices import check_gpus, choose_device
from lapae.train.distributed import MEETING, have_met, join
from lapae.train.launch import launched, launched_on_node

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@contextmanager
def matrix_products(config: TrainConfig) -> Iterator[None]:
    """Products of float32 matrices as `config` asks for: on a GPU, "tf32" rounds their factors to 10 bits."""
    before = torch.get_float32_matmul_precision()
    if config.precision == "tf32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def n_processes(config: TrainConfig) -> tuple[int, int]:
    """Processes on each machine, and machines: those that torchrun started, or those that `config` asks for."""
    if launched() > 1:
        return launched_on_node(), launched() // launched_on_node()
    return config.devices, config.num_nodes


def several(config: TrainConfig) -> bool:
    """Whether more than one process trains."""
    return n_processes(config) != (1, 1)


def make_fabric(config: TrainConfig) -> Fabric:
    """Fabric on the device, in the precision and over the processes that `config` asks for; they have met then."""
    from lightning_fabric import Fabric  # takes seconds
    from lightning_fabric.strategies.ddp import DDPStrategy

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # no banners, which each process would show
    on_gpu = choose_device(config.device) == "cuda"
    options: dict[str, Any] = {
        "accelerator": "cuda" if on_gpu else "cpu",
        "precision": "bf16-mixed" if config.precision == "bf16" else "32-true",
    }
    if not several(config):
        return Fabric(devices=1, **options)
    devices, num_nodes = n_processes(config)
    if on_gpu:
        check_gpus(devices)
    # The precision is a buffer, and the same everywhere already: not to be broadcast before every forward pass.
    known = inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # its name before 2.13
    synchronise: dict[str, Any] = {option: False}
    join("nccl" if on_gpu else "gloo")
    strategy = DDPStrategy(timeout=MEETING, **synchronise)
    fabric = Fabric(devices=devices, num_nodes=num_nodes, strategy=strategy, **options)
    fabric.launch()
    have_met()
    return fabric
