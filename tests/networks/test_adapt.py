"""Encoders and decoders of others: what they give becomes a tensor, with the weights of each half."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from lapae import LaplacianAutoencoder
from lapae.curvature import ggn_diagonal, reference
from lapae.errors import ConfigError
from lapae.networks import Autoencoder
from lapae.networks.adapt import adapt, code_of

DENSE = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), nn.Sequential(nn.Linear(2, 4))


class Gives(nn.Module):
    """An encoder whose mean is a convolution, in the shape that `wrap` makes of it."""

    def __init__(self, wrap) -> None:
        super().__init__()
        self.mean, self.log_variance, self.wrap = nn.Conv2d(1, 2, 2, 2), nn.Conv2d(1, 2, 2, 2), wrap

    def forward(self, x: Tensor):
        return self.wrap(self.mean(x), self.log_variance(x))


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def test_modules_that_give_and_take_rows_stay_as_they_are():
    encoder, decoder = adapt(DENSE, (4,))
    assert encoder is DENSE[0]
    assert decoder is DENSE[1]


def test_a_spatial_code_becomes_a_row_and_names_stay():
    pair = nn.Sequential(nn.Conv2d(1, 2, 2, 2), nn.Tanh()), nn.Sequential(nn.ConvTranspose2d(2, 1, 2, 2))
    pair[1].train()
    encoder, decoder = adapt(pair, (1, 4, 4))
    x = torch.randn(3, 1, 4, 4)
    z = encoder(x)
    assert z.shape == (3, 8)
    assert_close(z, pair[0](x).flatten(1))
    assert_close(decoder(z), pair[1](pair[0](x)))
    assert names(encoder) == names(pair[0])
    assert names(decoder) == names(pair[1])
    assert pair[1].training
    ggn_diagonal(Autoencoder(encoder, decoder).eval(), x)  # by the rules of its layers


GIVEN = {
    "pair": lambda mean, log_variance: (mean, log_variance),
    "list": lambda mean, log_variance: [mean, log_variance],
    "side by side": lambda mean, log_variance: torch.cat([mean, log_variance], 1),
    "distribution": lambda mean, log_variance: SimpleNamespace(latent_dist=SimpleNamespace(mean=mean)),
    "latents": lambda mean, log_variance: SimpleNamespace(latents=mean),
    "dictionary": lambda mean, log_variance: {"mu": mean, "logvar": log_variance},
    "torch's normal": lambda mean, log_variance: torch.distributions.Normal(mean, log_variance.exp()),
}


@pytest.mark.parametrize("given", GIVEN)
def test_the_mean_is_the_code(given):
    torch.manual_seed(0)
    pair = Gives(GIVEN[given]).double(), nn.ConvTranspose2d(2, 1, 2, 2).double()
    encoder, decoder = adapt(pair, (1, 4, 4))
    x = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    assert_close(encoder(x), pair[0].mean(x).flatten(1))
    assert_close(decoder(encoder(x)), pair[1](pair[0].mean(x)))
    network = Autoencoder(encoder, decoder)
    plain = nn.Sequential(pair[0].mean, pair[1])
    exact, expected = ggn_diagonal(network, x, method="exact"), reference.ggn_diagonal(plain, x)
    assert_close(exact["encoder.network.network.mean.weight"], expected["0.weight"])
    assert_close(exact["decoder.network.weight"], expected["1.weight"])
    assert exact["encoder.network.network.log_variance.weight"].abs().max() == 0


def test_a_decoder_that_gives_several_things():
    class Two(nn.Linear):
        def forward(self, input: Tensor):
            return super().forward(input), input

    encoder, decoder = adapt((nn.Linear(4, 2), Two(2, 4)), (4,))
    assert decoder(torch.randn(3, 2)).shape == (3, 4)
    assert isinstance(encoder, nn.Linear)


class Whole(nn.Module):
    """A model with both verbs, weights that neither uses, and a layer that is called for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.log_variance = nn.Linear(4, 2), nn.Linear(2, 4), nn.Linear(4, 2)
        self.scale, self.idle = nn.Parameter(torch.ones(2)), nn.Linear(7, 7)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.scale * self.a(x), self.log_variance(x)

    def decode(self, z: Tensor) -> Tensor:
        return self.b(z)


def test_a_model_with_both_verbs_is_taken_apart():
    model = Whole()
    state = copy.deepcopy(model.state_dict())
    encoder, decoder = adapt(model, (4,))
    x = torch.randn(3, 4)
    assert_close(encoder(x), model.encode(x)[0])
    assert_close(decoder(encoder(x)), model.decode(model.encode(x)[0]))
    prefix = "network.network."
    called = {"scale", "a.weight", "a.bias", "log_variance.weight", "log_variance.bias"}
    assert {name.removeprefix(prefix) for name in names(encoder)} == called
    assert {name.removeprefix("network.") for name in names(decoder)} == {"b.weight", "b.bias"}
    assert_close(model.state_dict(), state, rtol=0, atol=0)
    assert all(p.requires_grad for p in (*encoder.parameters(), *decoder.parameters()))


@pytest.mark.parametrize("kind", ["kl", "tiny"])
def test_autoencoders_of_diffusers(kind):
    diffusers = pytest.importorskip("diffusers", reason="diffusers is a test extra")
    torch.manual_seed(0)
    if kind == "kl":
        model = diffusers.AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(2, 4), norm_num_groups=2, latent_channels=1, layers_per_block=1,
        )  # fmt: skip
    else:
        model = diffusers.AutoencoderTiny(
            encoder_block_out_channels=(2, 2), decoder_block_out_channels=(2, 2),
            num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1), latent_channels=2,
        )  # fmt: skip
    model.eval()
    x = torch.randn(3, 3, 8, 8)
    encoder, decoder = adapt(model, (3, 8, 8))
    code = code_of(model.encode(x))
    assert_close(encoder(x), code.flatten(1))
    assert_close(decoder(encoder(x)), model.decode(code).sample)
    n_weights = sum(p.numel() for p in model.parameters())
    assert sum(p.numel() for p in (*encoder.parameters(), *decoder.parameters())) == n_weights
    apart = adapt((model.encoder, model.decoder), (3, 8, 8))  # of kl the encoder gives mean and log-variance
    assert apart[1](apart[0](x)).shape == x.shape
    h = ggn_diagonal(Autoencoder(encoder, decoder), x, method="sketch")
    assert len(h) == len(list(model.parameters()))
    assert all(v.isfinite().all() for v in h.values())


def test_what_does_not_fit_is_left_for_the_error_that_says_so():
    for pair in ((nn.Linear(5, 2), nn.Linear(2, 4)), (nn.Linear(4, 3), nn.Linear(2, 4))):
        assert adapt(pair, (4,)) == pair
    with pytest.raises(TypeError, match="expected a model that can encode and decode"):
        adapt(nn.Linear(4, 4), (4,))
    with pytest.raises(TypeError, match="expected an encoder that returns codes"):
        code_of(3)


class Between(nn.Module):
    """Its modules `encode` and `decode` are not all: there is a layer between them, as in MONAI's VarAutoEncoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.mean, self.decode = nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.mean(self.encode(x)))


class Named(Between):
    def encode_forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean = self.mean(self.encode(x))
        return mean, torch.zeros_like(mean)

    def decode_forward(self, z: Tensor) -> Tensor:
        return self.decode(z)


def test_halves_that_are_not_the_whole_are_warned_of():
    with pytest.warns(UserWarning, match="Between returns another reconstruction than its encoder and decoder"):
        adapt(Between(), (4,))


def test_the_verbs_of_a_model_come_before_its_modules(recwarn):
    model, x = Named(), torch.randn(5, 4)
    encoder, decoder = adapt(model, (4,))
    assert_close(decoder(encoder(x)), model(x))
    assert not recwarn.list


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_modules_of_another_precision_are_copied_into_this_one(dtype):
    encoder, decoder = nn.Linear(4, 2).to(dtype), nn.Linear(2, 4).to(dtype)
    X = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
    model = LaplacianAutoencoder.from_trained(encoder, decoder, random_state=0).fit(X)
    assert next(encoder.parameters()).dtype == dtype
    same = LaplacianAutoencoder.from_trained(encoder.float(), decoder.float(), random_state=0).fit(X)
    np.testing.assert_array_equal(model.reconstruct(X[:5]), same.reconstruct(X[:5]))
    np.testing.assert_array_equal(model.p_value(X), same.p_value(X))


class Recurrent(nn.Module):
    """A code from the states of an LSTM, or all that it gives."""

    def __init__(self, code, **options) -> None:
        super().__init__()
        self.lstm, self.code = nn.LSTM(2, 3, **options), code

    def forward(self, x: Tensor):
        return self.code(self.lstm(x))


class Skipping(nn.Module):
    """A decoder that needs more than a code: as two arguments, or as a pair."""

    def __init__(self, pair: bool) -> None:
        super().__init__()
        self.layer, self.pair = nn.Linear(2, 8), pair

    def forward(self, z, *skip):
        z, skip = z if self.pair else (z, skip[0])
        return self.layer(z) + skip


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), 2 * x


class Centred(nn.Module):
    """Takes the mean of its batch away."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y - 0.1 * y.mean(0)


class After(nn.Module):
    """A layer, and what is done to its outputs."""

    def __init__(self, done: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.done = nn.Linear(8, 2), done

    def forward(self, x: Tensor) -> Tensor:
        return self.done(self.layer(x))


def weight_norm(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old way, which is deprecated
        return nn.utils.weight_norm(layer)


def image() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.Unflatten(1, (1, 4, 2)))


def window() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Unflatten(1, (4, 2)))


BATCHED = nn.BatchNorm1d(3, track_running_stats=False)
REFUSED = {
    "lstm": (nn.LSTM(2, 3, batch_first=True), window(), r"what a LSTM returns.*return self\.lstm"),
    "lstm in a module": (Recurrent(lambda found: found), window(), r"recurrent layer returns.*return self\.lstm"),
    "time first": (Recurrent(lambda found: found[1][0][-1]), window(), r"for 3 samples.*batch_first=True"),
    "two arguments": (Skips(), Skipping(False), r"the encoder returns 2 values.*torch\.cat"),
    "a pair": (Skips(), Skipping(True), r"the encoder returns 2 values.*torch\.cat"),
    "missing argument": (nn.Linear(8, 2), nn.Bilinear(2, 2, 8), r"the decoder does not take its input"),
    "coupled codes": (Centred(nn.Linear(8, 2)), nn.Linear(2, 8), r"the encoder .* couples the samples"),
    "coupled outputs": (nn.Linear(8, 2), Centred(nn.Linear(2, 8)), r"the decoder .* couples the samples"),
    "forward through the batch": (After(lambda z: z.cumsum(0)), nn.Linear(2, 8), r"the encoder .* couples"),
    "large batches": (After(lambda z: z - z.mean(0) if len(z) > 8 else z), nn.Linear(2, 8), r"the encoder .* couples"),
    "weakly coupled": (After(lambda z: z + 1e-3 * z.flip(0)), nn.Linear(2, 8), r"the encoder .* couples"),
    "noise": (After(lambda z: z + 0.1 * torch.randn_like(z)), nn.Linear(2, 8), r"random numbers.*return the mean"),
    "dropout": (After(lambda z: F.dropout(z, 0.3)), nn.Linear(2, 8), r"random numbers.*training=self\.training"),
    "weight norm": (weight_norm(nn.Linear(8, 2)), nn.Linear(2, 8), r"cannot be copied.*remove_weight_norm"),
    "no channel, window": (nn.Sequential(nn.Flatten(), nn.Linear(8, 2)), image(), r"channel, as \(n, 1, 4, 2\)"),
    "batch statistics": (nn.Sequential(nn.Linear(8, 3), BATCHED), nn.Linear(3, 8), r"couples .*track_running_stats"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_with_what_to_write(name):
    encoder, decoder, message = REFUSED[name]
    shape = (4, 2) if "lstm" in name or "window" in name or name == "time first" else (8,)
    X = 1e4 + np.random.default_rng(0).normal(size=(40, *shape))
    for method, epochs in (("posthoc", 0), ("online", 1)):
        with pytest.raises(ConfigError, match=message):
            LaplacianAutoencoder(network=(encoder, decoder), method=method, epochs=epochs, device="cpu").fit(X)


def test_what_the_message_says_works():
    encoder = Recurrent(lambda found: found[1][0][-1], batch_first=True)
    X = np.random.default_rng(0).normal(size=(60, 4, 2))
    model = LaplacianAutoencoder(network=(encoder, window()), epochs=1, device="cpu", random_state=0).fit(X)
    assert model.transform(X).shape == (60, 3)


def test_the_default_precision_of_torch_does_not_count():
    X = np.random.default_rng(0).normal(size=(60, 4))
    torch.set_default_dtype(torch.float64)
    try:
        for given in (X, X.reshape(60, 2, 2)):
            model = LaplacianAutoencoder(epochs=1, device="cpu", random_state=0).fit(given)
            assert np.isfinite(model.p_value(given)).all()
            assert model.sample(3).shape == (3, *given.shape[1:])
    finally:
        torch.set_default_dtype(torch.float32)


def test_data_in_16_bits():
    X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    model = LaplacianAutoencoder.from_trained(nn.Linear(4, 2), nn.Linear(2, 4), random_state=0).fit(X)
    assert model.p_value(X).shape == (60,)


@pytest.mark.parametrize("kind", ["number", "dictionary", "nan"])
def test_what_is_no_trained_encoder_is_refused(kind):
    class Unknown(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"features": x[:, :2]}

    broken = nn.Linear(4, 2)
    nn.init.constant_(broken.weight, torch.nan)
    encoder, message = {
        "number": (3, "expected a torch.nn.Module for encoder and decoder, got int"),
        "dictionary": (Unknown(), "returns a dict in which no code is known"),
        "nan": (broken, "'weight' of your Linear holds NaN"),
    }[kind]
    x = np.random.default_rng(0).standard_normal((60, 4))
    with pytest.raises(ConfigError, match=message):
        LaplacianAutoencoder.from_trained(encoder, nn.Linear(2, 4), device="cpu").fit(x)
