"""The shared list of networks, one or more for each layer and option that the curvature covers.

Every network has at least four parametric layers: with fewer, `approx` and `exact` may agree by chance. Inputs and
weights are float64, the sizes as small as the layer allows, as the brute force holds one Jacobian per sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lapae.curvature import Residual, Sum
from lapae.networks import Autoencoder


@dataclass(frozen=True)
class Case:
    """A network and the shape of a sample."""

    name: str
    layers: Callable[[], nn.Module]
    shape: tuple[int, ...]
    n_data: int = 3

    def module(self) -> nn.Module:
        """The network, always the same, in eval mode, with weights and statistics that are not special."""
        torch.manual_seed(0)
        module = self.layers().double().eval()
        for layer in module.modules():
            if isinstance(layer, nn.GroupNorm | nn.LayerNorm | nn.RMSNorm) and layer.weight is not None:
                layer.weight.data.uniform_(0.5, 1.5)
            if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                for statistic in (layer.running_mean, layer.running_var, layer.weight, layer.bias):
                    if statistic is not None:
                        statistic.data.uniform_(0.5, 1.5)
        return module

    def x(self, n_data: int | None = None) -> Tensor:
        """Inputs (B, *shape)."""
        return torch.randn(n_data or self.n_data, *self.shape, dtype=torch.float64, generator=seeded(1))


def seeded(seed: int) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


def dense(activation: Callable[[], nn.Module], bias: bool = True) -> nn.Sequential:
    """5-7-2-6-5, the shape of an autoencoder."""
    return nn.Sequential(
        nn.Linear(5, 7, bias=bias), activation(),
        nn.Linear(7, 2, bias=bias), activation(),
        nn.Linear(2, 6, bias=bias), activation(),
        nn.Linear(6, 5, bias=bias),
    )  # fmt: skip


def around(*layers: nn.Module, dims: int = 2, channels: int = 2, after: int | None = None) -> nn.Sequential:
    """Four convolutions with `layers` in the middle, which make `after` channels out of `channels`."""
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    return nn.Sequential(
        conv(1, 2, 2, padding=1), nn.Tanh(),
        conv(2, channels, 2), nn.Tanh(),
        *layers,
        conv(after or channels, 2, 2, padding=1), nn.Tanh(),
        conv(2, 1, 2),
    )  # fmt: skip


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "relu inplace": lambda: nn.ReLU(inplace=True),
    "leaky relu": lambda: nn.LeakyReLU(0.3),
    "elu": lambda: nn.ELU(0.7),
    "gelu": nn.GELU,
    "gelu tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "softplus": lambda: nn.Softplus(beta=2.0, threshold=0.5),
    "identity": nn.Identity,
    "dropout eval": lambda: nn.Dropout(0.5),
    "celu": nn.CELU,
    "mish": nn.Mish,
    "selu": nn.SELU,
    "hardswish": nn.Hardswish,
    "softsign": nn.Softsign,
    "logsigmoid": nn.LogSigmoid,
}

DENSE = [Case(f"dense {name}", lambda a=a: dense(a), (5,)) for name, a in ACTIVATIONS.items()] + [
    Case("dense without bias", lambda: dense(nn.Tanh, bias=False), (5,)),
    Case("linear on (B, T, in)", lambda: dense(nn.Tanh), (3, 5)),
    Case("linear on (B, S, T, in)", lambda: dense(nn.Tanh), (2, 2, 5)),
    Case("wider than the data", lambda: nn.Sequential(nn.Linear(2, 9), nn.ELU(), nn.Linear(9, 5), dense(nn.ELU)), (2,)),
    Case("layer norm", lambda: nn.Sequential(dense(nn.Tanh), nn.LayerNorm(5), dense(nn.Tanh)), (5,)),
    Case("layer norm without bias, of two axes", lambda: nn.Sequential(
        dense(nn.Tanh), nn.LayerNorm([2, 5], eps=0.1, bias=False), dense(nn.Tanh)), (2, 5)),
    Case("layer norm on (B, T, in)", lambda: nn.Sequential(dense(nn.Tanh), nn.LayerNorm(5), dense(nn.Tanh)), (3, 5)),
    Case("rms norm", lambda: nn.Sequential(dense(nn.Tanh), nn.RMSNorm(5), dense(nn.Tanh)), (5,)),
    Case("rms norm on (B, T, in), no weight", lambda: nn.Sequential(
        dense(nn.Tanh), nn.RMSNorm(5, eps=0.3, elementwise_affine=False), dense(nn.Tanh)), (2, 5)),
    Case("softmax over positions", lambda: nn.Sequential(dense(nn.Tanh), nn.Softmax(1), dense(nn.Tanh)), (3, 5)),
    Case("log-softmax inside", lambda: nn.Sequential(dense(nn.Tanh), nn.LogSoftmax(-1), dense(nn.Tanh)), (5,)),
    Case("softmax inside", lambda: nn.Sequential(dense(nn.Tanh), nn.Softmax(1), dense(nn.Tanh)), (5,)),
    Case("batchnorm 1d", lambda: nn.Sequential(dense(nn.Tanh), nn.BatchNorm1d(5), nn.Tanh(), dense(nn.Tanh)), (5,)),
    Case("batchnorm at both ends", lambda: nn.Sequential(nn.BatchNorm1d(5), dense(nn.Tanh), nn.BatchNorm1d(5)), (5,)),
    Case(
        "batchnorm without weights",
        lambda: nn.Sequential(dense(nn.Tanh), nn.BatchNorm1d(5, affine=False), dense(nn.Tanh)),
        (5,),
    ),
    Case("residual", lambda: nn.Sequential(nn.Linear(4, 5), Residual(dense(nn.Tanh)), nn.ELU(), nn.Linear(5, 3)), (4,)),
    Case(
        "residual in residual, at both ends",
        lambda: nn.Sequential(
            Residual(nn.Linear(5, 5), Residual(dense(nn.GELU)), nn.Tanh()), nn.Linear(5, 5), Residual(nn.Linear(5, 5))
        ),
        (5,),
    ),
    Case("linear path", lambda: nn.Sequential(Sum(nn.Linear(5, 5), dense(nn.Tanh)), nn.Tanh(), nn.Linear(5, 3)), (5,)),
    Case(
        "autoencoder with linear paths",
        lambda: nn.Sequential(
            Sum(nn.Linear(5, 2), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))),
            Sum(nn.Linear(2, 5), nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 5))),
        ),
        (5,),
    ),
    Case("residual of one layer", lambda: Residual(dense(nn.Tanh)), (5,)),
    Case(
        "autoencoder, nested",
        lambda: Autoencoder(
            nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, 2)),
            nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 6), nn.Unflatten(1, (1, 2, 3))),
        ),
        (1, 2, 3),
    ),
]  # fmt: skip


def conv_mix(dims: int, **options) -> nn.Sequential:
    """Convolution with the options, then back with a transposed one, twice."""
    conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    transposed = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}[dims]
    return nn.Sequential(
        conv(2, 4, 2, **options), nn.Tanh(), transposed(4, 2, 2, **options), nn.Tanh(),
        conv(2, 2, 2, **options), nn.Tanh(), transposed(2, 2, 2, **options),
    )  # fmt: skip


OPTIONS = {
    "plain": {},
    "stride": {"stride": 2},
    "padding": {"padding": 1},
    "dilation": {"dilation": 2},
    "groups": {"groups": 2},
    "no bias": {"bias": False},
    "all": {"stride": 2, "padding": 1, "dilation": 2, "groups": 2, "bias": False},
}
SIZES: dict[int, tuple[int, ...]] = {1: (7,), 2: (5, 4), 3: (4, 3, 3)}

CONVOLUTIONS = [
    Case(f"conv{dims}d {name}", lambda dims=dims, options=options: conv_mix(dims, **options), (2, *size), n_data=2)
    for dims, size in SIZES.items()
    for name, options in OPTIONS.items()
] + [
    Case("padding same, even kernel", lambda: around(nn.Conv2d(2, 2, 4, padding="same"), nn.Tanh()), (1, 4, 3)),
    Case("padding same, dilated", lambda: around(nn.Conv2d(2, 2, (2, 3), padding="same", dilation=2)), (1, 4, 3)),
    Case("padding valid", lambda: around(nn.Conv2d(2, 2, 2, padding="valid")), (1, 4, 4)),
    Case(
        "transposed, output padding",
        lambda: around(nn.ConvTranspose2d(2, 2, 3, stride=(3, 2), padding=1, output_padding=(2, 1)), nn.Tanh()),
        (1, 3, 2),
    ),
    Case(
        "transposed, output padding, dilation, groups",
        lambda: around(
            nn.ConvTranspose2d(2, 4, (2, 3), 2, (1, 0), output_padding=1, dilation=2, groups=2, bias=False),
            nn.Tanh(),
            after=4,
        ),
        (1, 3, 2),
        n_data=2,
    ),
    Case(
        "transposed 1d, output padding",
        lambda: around(nn.ConvTranspose1d(2, 2, 3, stride=3, output_padding=2), nn.Tanh(), dims=1),
        (1, 4),
    ),
    Case(
        "uneven options",
        lambda: around(nn.Conv2d(2, 2, (3, 1), stride=(1, 2), padding=(2, 1), dilation=(2, 1)), nn.Tanh()),
        (1, 4, 4),
    ),
    Case("depthwise", lambda: around(nn.Conv2d(2, 4, 2, groups=2), nn.Tanh(), after=4), (1, 4, 3)),
]  # fmt: skip

MAPS = [
    Case("max-pool 1d", lambda: around(nn.MaxPool1d(2), dims=1), (1, 8)),
    Case("max-pool 2d", lambda: around(nn.MaxPool2d(2)), (1, 5, 4)),
    Case("max-pool 2d, overlapping", lambda: around(nn.MaxPool2d(3, stride=1, padding=1)), (1, 4, 4)),
    Case("max-pool 2d, ceil, dilated", lambda: around(nn.MaxPool2d(2, 2, dilation=2, ceil_mode=True)), (1, 5, 6)),
    Case("max-pool 3d", lambda: around(nn.MaxPool3d((2, 1, 2)), dims=3), (1, 3, 2, 3), n_data=2),
    Case("avg-pool 1d", lambda: around(nn.AvgPool1d(3, stride=2, padding=1), dims=1), (1, 8)),
    Case("avg-pool 2d", lambda: around(nn.AvgPool2d((2, 3), stride=(1, 2), padding=(1, 1))), (1, 4, 5)),
    Case("avg-pool 2d, ceil", lambda: around(nn.AvgPool2d(2, ceil_mode=True)), (1, 5, 4)),
    Case("avg-pool 2d, ceil and padding", lambda: around(nn.AvgPool2d(3, 2, 1, ceil_mode=True)), (1, 5, 4)),
    Case("avg-pool 2d, padding not counted", lambda: around(nn.AvgPool2d(3, 3, 1, count_include_pad=False)), (1, 5, 4)),
    Case("avg-pool 2d, divisor", lambda: around(nn.AvgPool2d(2, stride=1, divisor_override=3)), (1, 4, 4)),
    Case("avg-pool 3d", lambda: around(nn.AvgPool3d(2, stride=1), dims=3), (1, 3, 2, 3), n_data=2),
    Case("adaptive avg-pool 1d", lambda: around(nn.AdaptiveAvgPool1d(3), dims=1), (1, 7)),
    Case("adaptive avg-pool 2d", lambda: around(nn.AdaptiveAvgPool2d((2, None))), (1, 5, 3)),
    Case("adaptive avg-pool 3d", lambda: around(nn.AdaptiveAvgPool3d(2), dims=3), (1, 3, 3, 3), n_data=2),
    Case("nearest", lambda: around(nn.Upsample(scale_factor=2)), (1, 3, 3)),
    Case("nearest, 1d", lambda: around(nn.Upsample(scale_factor=3), dims=1), (1, 4)),
    Case("nearest, 3d", lambda: around(nn.Upsample(scale_factor=(2, 1, 1)), dims=3), (1, 2, 2, 3), n_data=2),
    Case("nearest, a class of its own", lambda: around(nn.UpsamplingNearest2d(scale_factor=2)), (1, 3, 3)),
    Case("nearest to a multiple", lambda: around(nn.Upsample(size=(4, 6))), (1, 2, 2)),
    Case("nearest to a size", lambda: around(nn.Upsample(size=(5, 4))), (1, 3, 3)),
    Case("nearest, broken factor", lambda: around(nn.Upsample(scale_factor=1.7)), (1, 3, 4)),
    Case("nearest, broken factor, whole ratio", lambda: around(nn.Upsample(scale_factor=2.3)), (1, 2, 2)),
    Case("nearest-exact", lambda: around(nn.Upsample(size=(5, 4), mode="nearest-exact")), (1, 3, 3)),
    Case("smaller by nearest", lambda: around(nn.Upsample(size=(2, 2))), (1, 5, 4)),
    Case("linear upsampling", lambda: around(nn.Upsample(scale_factor=2, mode="linear"), dims=1), (1, 4)),
    Case("bilinear", lambda: around(nn.Upsample(scale_factor=2, mode="bilinear")), (1, 3, 3)),
    Case("bilinear, corners", lambda: around(nn.Upsample(size=(5, 4), mode="bilinear", align_corners=True)), (1, 3, 3)),
    Case("bilinear, broken factor", lambda: around(nn.Upsample(scale_factor=(1.6, 2.3), mode="bilinear")), (1, 3, 3)),
    Case("trilinear", lambda: around(nn.Upsample(scale_factor=2, mode="trilinear"), dims=3), (1, 2, 1, 2), n_data=2),
    Case("bicubic", lambda: around(nn.Upsample(scale_factor=2, mode="bicubic")), (1, 3, 3)),
    Case("pixel shuffle", lambda: around(nn.PixelShuffle(2), channels=4, after=1), (1, 3, 3)),
    Case("pixel unshuffle", lambda: around(nn.PixelUnshuffle(2), channels=1, after=4), (1, 4, 4)),
    Case("channel shuffle", lambda: around(nn.ChannelShuffle(2), channels=4), (1, 3, 3)),
    Case("zero padding 1d", lambda: around(nn.ZeroPad1d((2, 1)), dims=1), (1, 4)),
    Case("zero padding 2d", lambda: around(nn.ZeroPad2d((1, 0, 2, 1))), (1, 3, 3)),
    Case("cropping by padding", lambda: around(nn.ZeroPad2d((-1, 0, 1, 0))), (1, 4, 4)),
    Case("constant padding", lambda: around(nn.ConstantPad2d(1, 0.7)), (1, 3, 3)),
    Case("reflection padding", lambda: around(nn.ReflectionPad2d(1)), (1, 3, 3)),
    Case("replication padding", lambda: around(nn.ReplicationPad2d(2)), (1, 3, 3)),
    Case("circular padding", lambda: around(nn.CircularPad2d(1)), (1, 3, 3)),
    Case("dropout 2d eval", lambda: around(nn.Dropout2d(0.4)), (1, 4, 3)),
    Case("batchnorm 2d", lambda: nn.Sequential(around(nn.BatchNorm2d(2)), nn.BatchNorm2d(1), nn.Tanh()), (1, 4, 3)),
    Case("batchnorm 3d", lambda: around(nn.BatchNorm3d(2), dims=3), (1, 2, 2, 3), n_data=2),
    Case("batchnorm on sequences", lambda: around(nn.BatchNorm1d(2), dims=1), (1, 5)),
    Case("residual, convolutional", lambda: around(Residual(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU())), (1, 4, 3)),
    Case("group norm", lambda: around(nn.GroupNorm(2, 4), channels=4), (1, 4, 3)),
    Case("group norm without weights", lambda: around(nn.GroupNorm(1, 2, eps=0.2, affine=False)), (1, 4, 3)),
    Case("group norm on sequences", lambda: around(nn.GroupNorm(2, 2), dims=1), (1, 5)),
    Case("flatten in part", lambda: nn.Sequential(nn.Flatten(2), dense(nn.Tanh)), (2, 5, 1)),
    Case(
        "convolutional autoencoder",
        lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2), nn.Linear(2, 8),
            nn.Tanh(), nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 2, 3, padding=1), nn.Upsample(scale_factor=2),
            nn.Tanh(), nn.Conv2d(2, 1, 3, padding=1),
        ),
        (1, 4, 4),
    ),
]  # fmt: skip

CASES = DENSE + CONVOLUTIONS + MAPS
