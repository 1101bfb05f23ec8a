"""Modules as people write them: attention, concatenation, recurrences, weights used twice, functional calls.

None of them can be walked layer by layer. Small, deterministic, float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Tied(nn.Module):
    """The decoder is the encoder transposed, and one layer is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(5, 4), nn.Linear(4, 4)
        self.bias = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        h = torch.tanh(self.middle(torch.tanh(self.middle(h))))
        return F.linear(h, self.first.weight.T, self.bias)


class Gated(nn.Module):
    """A single number without an axis says how much of a branch is added."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.gate = nn.Linear(5, 5), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * torch.tanh(self.layer(x))


class SharedLayer(nn.Module):
    """One parameter in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.gelu(self.a(x)))


class Twice(nn.Module):
    """One layer under two names, and another in a list as well."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 5)
        self.b, self.all = self.a, nn.ModuleList([self.a, nn.Linear(5, 5)])

    def forward(self, x: Tensor) -> Tensor:
        return self.all[1](torch.tanh(self.b(torch.tanh(self.a(x)))))


class FunctionalConv(nn.Module):
    """Convolutions by hand, of raw parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(3, 1, 3, 3) / 3)
        self.shift = nn.Parameter(torch.randn(3))
        self.back = nn.Parameter(torch.randn(3, 1, 2, 2) / 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(F.conv2d(x, self.kernel, self.shift, stride=2, padding=1))
        h = F.conv2d(h, torch.flip(self.kernel, (2, 3)).transpose(0, 1)[:, :3], padding=1)
        return F.conv_transpose2d(torch.tanh(h).expand(-1, 3, -1, -1), self.back, stride=2)


class UNet(nn.Module):
    """Skips by concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 2, 3, padding=1), nn.Conv2d(2, 3, 3, padding=1)
        self.norm = nn.GroupNorm(1, 3)
        self.up1, self.up2 = nn.Conv2d(5, 2, 3, padding=1), nn.Conv2d(3, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.silu(self.down1(x))
        b = F.silu(self.norm(self.down2(F.avg_pool2d(a, 2))))
        c = F.silu(self.up1(torch.cat([F.interpolate(b, scale_factor=2), a], 1)))
        return self.up2(torch.cat([c, x], 1))


class ViT(nn.Module):
    """Patches, a class token, positions, attention: a masked autoencoder's shape without the mask."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 5, width))
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 6), nn.GELU(), nn.Linear(6, width))
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x).flatten(2).mT
        h = torch.cat([self.token.expand(len(h), -1, -1), h], 1) + self.positions
        q, k, v = self.qkv(self.norm(h)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h = h + self.mlp(self.norm2(h))
        patches = self.head(h[:, 1:])
        return F.fold(patches.mT, 4, 2, stride=2)


class Attention(nn.Module):
    """torch's own attention, with the batch in the second place."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).transpose(0, 1)
        h = h + self.attention(h, h, h, need_weights=False)[0]
        return self.head(h).transpose(0, 1)


class Recurrent(nn.Module):
    """An LSTM whose last state is the code, unrolled again by a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 3, batch_first=True)
        self.code = nn.Linear(3, 2)
        self.cell, self.head = nn.GRUCell(2, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        z = self.code(self.lstm(x)[0][:, -1])
        h, out = x.new_zeros(len(x), 3), []
        for _ in range(x.shape[1]):
            h = self.cell(z, h)
            out.append(self.head(h))
        return torch.stack(out, 1)


class InPlace(nn.Module):
    """Writes into a buffer that it made itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_ones(len(x), 4)
        h[:, 1:] = torch.tanh(self.a(x))
        return self.b(h)


class Windows(nn.Module):
    """Folds parts of a sample into the batch axis, one before and one after the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 3), nn.Linear(3, 2), nn.Conv1d(1, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        h = torch.tanh(self.a(x.reshape(n * 3, 2)))  # (data, windows)
        h = h.reshape(n, 3, 3).transpose(0, 1).reshape(n * 3, 1, 3)  # (windows, data)
        h = torch.tanh(self.c(h)).reshape(3, n, 2).transpose(0, 1)
        return self.b(F.pad(h, (0, 1)))


class Pair(nn.Module):
    """Gives a tuple, of which the reconstruction is the first."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 3), nn.Linear(3, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.tanh(self.a(x))
        return self.b(z), z


class Padded(nn.Module):
    """Words of a sentence, of which some are padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 3, padding_idx=-3)
        self.last = nn.Linear(3, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.words((x > 0).long() + (x > 1).long()).sum(1)))


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "tied": (Tied, (5,)),
    "gated": (Gated, (5,)),
    "shared layer": (SharedLayer, (5,)),
    "twice": (Twice, (5,)),
    "functional convolution": (FunctionalConv, (1, 4, 4)),
    "u-net": (UNet, (1, 4, 4)),
    "vit": (ViT, (1, 4, 4)),
    "attention": (Attention, (3, 2)),
    "recurrent": (Recurrent, (3, 2)),
    "in place": (InPlace, (5,)),
    "windows": (Windows, (3, 2)),
    "pair": (Pair, (5,)),
    "weight norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(5, 4)), nn.Tanh(), nn.Linear(4, 5)),
        (5,),
    ),
    "padded": (Padded, (5,)),
    "circular": (
        lambda: nn.Sequential(nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular"), nn.Tanh(), nn.Conv1d(2, 1, 1)),
        (1, 5),
    ),
}


def small_kl() -> nn.Module:
    import diffusers

    kl: Any = diffusers.AutoencoderKL  # pyright: ignore[reportPrivateImportUsage]  # a lazy module
    return kl(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(2, 4), norm_num_groups=2, latent_channels=1, layers_per_block=1,
    )  # fmt: skip


def small_tiny() -> nn.Module:
    import diffusers

    tiny: Any = diffusers.AutoencoderTiny  # pyright: ignore[reportPrivateImportUsage]  # a lazy module
    model = tiny(
        encoder_block_out_channels=(2, 2), decoder_block_out_channels=(2, 2),
        num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1), latent_channels=2,
    )  # fmt: skip
    return nn.Sequential(model.encoder, model.decoder)  # its own forward rounds the code to bytes


def small_mae() -> nn.Module:
    from transformers.models.vit_mae.configuration_vit_mae import ViTMAEConfig
    from transformers.models.vit_mae.modeling_vit_mae import ViTMAEForPreTraining

    config = ViTMAEConfig(
        hidden_size=4, num_hidden_layers=1, num_attention_heads=2, intermediate_size=4, image_size=4, patch_size=2,
        num_channels=1, decoder_num_attention_heads=2, decoder_hidden_size=4, decoder_num_hidden_layers=1,
        decoder_intermediate_size=4, mask_ratio=0.0,
    )  # fmt: skip
    return Masked(ViTMAEForPreTraining(config))


class Masked(nn.Module):
    """A masked autoencoder with a fixed order of patches: which it hides is otherwise drawn anew at every call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.linspace(0, 1, 4, dtype=x.dtype).expand(len(x), 4)
        return self.model(x, noise=noise).logits


LIBRARIES: dict[str, tuple[str, Callable[[], nn.Module], tuple[int, ...]]] = {
    "autoencoder kl": ("diffusers", small_kl, (3, 4, 4)),
    "autoencoder tiny": ("diffusers", small_tiny, (3, 4, 4)),
    "vit mae": ("transformers", small_mae, (1, 4, 4)),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    """A module, always the same, in eval mode and float64, and a batch of three."""
    make, shape = MODULES[name] if name in MODULES else LIBRARIES[name][1:]
    torch.manual_seed(0)
    module = make().double().eval()
    return module, torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
