"""One training step, eager or replayed as a CUDA graph, and the sum of its losses on the device."""

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
from lapae.methods.step import Step
from lapae.networks.missing import Observe, drawing
from lapae.train.distributed import stand_in, total
from lapae.train.precision import autocast

TakeStep = Callable[..., Tensor]
"""x (B, *shape) on the device, and where several processes share the batch the number of data in all of it -> the loss
(a scalar on the device, not to be kept over steps)."""


class LossSum:
    """Losses summed on the device, read once per epoch: reading each step would make the device wait."""

    def __init__(self, device: torch.device) -> None:
        # [sum of loss times B, number of data, steps whose running sum was finite]
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)

    def reset(self) -> None:
        self.sums.zero_()

    def add(self, loss: Tensor, n_data: int) -> None:
        """Add the mean loss of `n_data`. Only in-place operations on the device: it is part of the captured step."""
        self.sums[0] += loss * n_data
        self.sums[1] += n_data
        self.sums[2] += self.sums[0].isfinite()

    def read(self) -> tuple[float, int]:
        """Mean loss over all processes, and the number of this one's steps up to which it was finite."""
        loss, n_data, _ = total(self.sums.clone()).tolist()
        return loss / max(n_data, 1.0), int(self.sums[2])


WIDE = 256
"""Inputs of a unit beyond which the learning rate of its weights falls, where `by_width`."""


def make_optimizer(method: nn.Module, learning_rate: float, device: torch.device, *, by_width: bool = False) -> Adam:
    """Adam over what is trainable; on a GPU so that it can be captured, its learning rate in a tensor.

    A step of Adam changes all weights of a unit by as much, and so its sum by more the more inputs it has: `by_width`
    divides the rate of weights by the number of inputs, in units of `WIDE`.
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
    """Set the learning rate to its place on half a cosine, with a part `done` of the training behind."""
    rate = 0.5 * learning_rate * (1 + math.cos(math.pi * done))
    for group in optimizer.param_groups:
        set_rate(group, rate * group["share"])


def averaging_gradients(method: nn.Module) -> DistributedDataParallel:
    """`method` under DDP: its gradients are means over the processes that train."""
    # The precision is a buffer, and the same everywhere already: not to be broadcast before every forward pass.
    known = inspect.signature(DistributedDataParallel).parameters
    option = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # its name before 2.13
    options: dict[str, Any] = {option: False}
    return DistributedDataParallel(method, **options)


def make_step(
    method: Method,
    optimizer: Adam,
    context: Step,
    losses: LossSum,
    *,
    batch_size: int,
    precision: str = "32",
    capture: bool = True,
) -> TakeStep:
    """The step of `method`: loss, gradient, what the method does with it, update.

    Args:
        context: what the method is told about a step of which all data are in this process.
        losses: the sum that each step's loss is added to.
        batch_size: data in a full batch; only steps of that size are replayed as a CUDA graph.
        precision: "32", "tf32" or "bf16".
        capture: replay the step as a CUDA graph where that works.
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
        else:  # kernels this small leave most of a GPU idle: the curvature and the backward pass share it
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                method.after_forward(here)
        # DDP takes the mean over processes, which is that over data where each loss weighs as its data do.
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
    """Replays `step` as one CUDA graph for batches of the full size; others (the last of an epoch) run eagerly.

    The first few steps run eagerly on a side stream, as capture asks for (they are ordinary steps of training). Capture
    itself records and does not run, so that the numbers are those of the eager step. It asks of a method that its step
    has the same operations every time, keeps its state in place and never waits for the device; a method whose step is
    not such says `capturable = False`, and where capture fails the step stays eager, with a warning.
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
        """Take a step on x (B, *shape), which is the whole batch."""
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
