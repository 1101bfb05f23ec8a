"""One training step (eager or replayed as a CUDA graph), its optimiser, and the sum of losses on the device."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lapae.methods import Method
from lapae.methods.adam import Adam, set_rate
from lapae.methods.step import StepContext
from lapae.networks.missing import Observe, drawing
from lapae.train.distributed import stand_in, total
from lapae.train.float_precision import autocast

TakeStep = Callable[..., Tensor]
"""Function of samples x (B, *shape) on the device and, if several processes share the batch, its size on all of them.
It returns the loss: a scalar on the device that the next step overwrites."""


class LossSum:
    """Sum of losses on the device, read once per epoch: reading each step would make the device wait."""

    def __init__(self, device: torch.device) -> None:
        # [sum of loss times B, number of samples, steps whose running sum was finite]
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)

    def reset(self) -> None:
        self.sums.zero_()

    def add(self, loss: Tensor, n_data: int) -> None:
        """Add the mean loss of `n_data` samples. In-place operations on the device alone: the step may be captured."""
        self.sums[0] += loss * n_data
        self.sums[1] += n_data
        self.sums[2] += self.sums[0].isfinite()

    def read(self) -> tuple[float, int]:
        """Return the mean loss over all processes, and the number of this one's steps up to which it was finite."""
        loss, n_data, _ = total(self.sums.clone()).tolist()
        return loss / max(n_data, 1.0), int(self.sums[2])


WIDE = 256
"""Number of inputs of a unit above which `by_width` lowers the learning rate of its weights."""


def make_optimizer(method: nn.Module, learning_rate: float, device: torch.device, *, by_width: bool = False) -> Adam:
    """Return the optimiser of the trainable weights.

    Args:
        method: the method to train.
        learning_rate: initial learning rate.
        device: where the method is; on a GPU, learning rates are tensors, so that the step can be captured.
        by_width: divide the learning rate of weights by the number of inputs of their unit, in units of `WIDE`. A step
            of Adam changes all weights of a unit by the same size, so that its output changes more with more inputs.

    Returns:
        Adam, with one group of parameters for each learning rate.
    """
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in method.parameters():
        if parameter.requires_grad:
            fan_in = parameter[0].numel() if by_width and parameter.ndim > 1 else 1
            groups.setdefault(min(1.0, WIDE / fan_in), []).append(parameter)
    rates = [{"params": members, "lr": learning_rate * share, "share": share} for share, members in groups.items()]
    for group in rates if device.type == "cuda" else ():
        group["lr"] = torch.tensor(group["lr"], device=device)
    return Adam(rates)


def anneal(optimizer: Adam, learning_rate: float, done: float) -> None:
    """Set the learning rate to its value on half a cosine, after a share `done` of the training."""
    rate = 0.5 * learning_rate * (1 + math.cos(math.pi * done))
    for group in optimizer.param_groups:
        set_rate(group, rate * group["share"])


def averaging_gradients(method: nn.Module) -> DistributedDataParallel:
    """Wrap a method in DDP, which averages its gradients over the processes."""
    # The precision is a buffer that is equal on all processes: it need not be broadcast before every forward pass.
    known = inspect.signature(DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # its name before 2.13
    options: dict[str, Any] = {option: False}
    return DistributedDataParallel(method, **options)


def make_step(
    method: Method,
    optimizer: Adam,
    context: StepContext,
    losses: LossSum,
    *,
    batch_size: int,
    precision: str = "32",
    capture: bool = True,
) -> TakeStep:
    """Return the training step of a method: loss, gradient, the method's own updates, optimiser.

    Args:
        method: the method to train.
        optimizer: its optimiser.
        context: context of a step whose samples are all in this process.
        losses: the sum to which the loss of each step is added.
        batch_size: samples in a full batch; only steps of this size are replayed as a CUDA graph.
        precision: "32", "tf32" or "bf16".
        capture: replay the step as a CUDA graph if possible.

    Returns:
        A function that takes one step (see `TakeStep`).
    """

    generator, n_processes, device = context.generator, context.world_size, losses.sums.device
    module = method if n_processes == 1 else averaging_gradients(method)
    beside = torch.cuda.Stream() if device.type == "cuda" else None

    heads = [layer for layer in method.modules() if isinstance(layer, Observe)] if n_processes > 1 else []

    def step(x: Tensor, n_batch: int | None = None) -> Tensor:
        n_data, here = len(x), context
        if n_batch is not None:
            here, x = context.of(n_batch), stand_in(x)
        optimizer.zero_grad()
        with autocast(precision, device), drawing(heads, here.uniform):
            loss = module(x, here)
        if beside is None:
            method.after_forward(here)
        else:  # small kernels leave most of a GPU idle: the curvature and the backward pass share it
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                method.after_forward(here)
        # DDP takes the mean over processes; weighting each loss by its samples makes it a mean over samples.
        loss = loss.float() if loss.dtype == torch.bfloat16 else loss
        (loss if n_processes == 1 else loss * (n_processes * here.share)).backward()
        method.after_backward(here)
        optimizer.step()
        if beside is not None:
            torch.cuda.current_stream().wait_stream(beside)
        loss = loss.detach()
        losses.add(loss, n_data)
        return loss

    if capture and generator is not None and device.type == "cuda" and n_processes == 1 and method.capturable:
        return CapturedStep(step, generator, batch_size)
    return step


class CapturedStep:
    """Training step that is replayed as one CUDA graph for full batches; others (the last of an epoch) run eagerly.

    The first few steps run eagerly on a side stream, as capture requires (they are ordinary steps of training). Capture
    itself records and does not run, so that the numbers are those of the eager step. The step of a method must have the
    same operations every time, update its state in place and never wait for the device; a method whose step does not
    has `capturable = False`. If capture fails, the step stays eager, with a warning.
    """

    WARM_UP = 3

    def __init__(self, step: TakeStep, generator: torch.Generator, batch_size: int) -> None:
        self.step = step
        self.generator = generator
        self.batch_size = batch_size
        self.stream = torch.cuda.Stream()
        self.n_eager = 0
        self.failed = False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: Tensor, n_batch: None = None) -> Tensor:
        """Take a step on a whole batch x (B, *shape)."""
        if self.failed or len(x) != self.batch_size:
            return self.step(x)
        if self.graph is None:
            if self.n_eager < self.WARM_UP:
                self.n_eager += 1
                return self._on_side_stream(x)
            self.graph = self._capture(x)
            if self.graph is None:
                self.failed = True
                return self.step(x)
        self.x.copy_(x)
        self.graph.replay()
        return self.loss

    def _on_side_stream(self, x: Tensor) -> Tensor:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = self.step(x)
        torch.cuda.current_stream().wait_stream(self.stream)
        return loss

    def _capture(self, x: Tensor) -> torch.cuda.CUDAGraph | None:
        self.x = x.clone()
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.loss = self.step(self.x)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            warnings.warn(
                f"the training step cannot be captured as a CUDA graph, so it runs eagerly: {reason}", stacklevel=2
            )
            torch.cuda.synchronize()
            for generator in (self.generator, torch.cuda.default_generators[x.device.index or 0]):
                # the default generator still has its capture flag set
                generator.graphsafe_set_state(generator.clone_state())
            return None
        return graph
