"""A trained network in two lines: nothing of it is changed, and every verb works."""

from __future__ import annotations

import copy
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from narrow import network_of
from torch import Tensor, nn

from lapae import Gaussian, LaplacianAutoencoder
from lapae.errors import ConfigError, DataError


class UNet(nn.Module):
    """A model with a skip inside each half, a spatial code, and verbs of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(5, 2, 3, stride=2, padding=1)
        self.up, self.last = nn.ConvTranspose2d(2, 4, 2, stride=2), nn.Conv2d(4, 1, 3, padding=1)

    def encode(self, x: Tensor) -> Tensor:
        return self.down(torch.cat([x, torch.relu(self.first(x))], 1))

    def decode(self, z: Tensor) -> Tensor:
        return self.last(torch.relu(self.up(z)))


def images(n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    place = rng.uniform(2, 6, (n, 2, 1, 1))
    y, x = np.mgrid[:8, :8]
    return np.exp(-((y - place[:, 0]) ** 2 + (x - place[:, 1]) ** 2) / 3)


@pytest.fixture(scope="module")
def trained() -> UNet:
    torch.manual_seed(0)
    network, x = UNet(), torch.from_numpy(images(200)[:, None]).float()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        (network.decode(network.encode(x)) - x).square().mean().backward()
        optimizer.step()
    return network


@pytest.fixture(scope="module")
def model(trained) -> LaplacianAutoencoder:
    return LaplacianAutoencoder.from_trained(trained, random_state=0, device="cpu").fit(images(150))


def test_nothing_is_trained(model, trained):
    x = torch.from_numpy(images(5)[:, None]).float()
    with torch.no_grad():
        code = trained.encode(x)
    network = model.model_.method.network
    with torch.no_grad():
        torch.testing.assert_close(network.encoder(x), code.flatten(1))
        torch.testing.assert_close(network.decoder(code.flatten(1)), trained.decode(code))
    assert model.latent_dim_ == 32
    assert all(parameter.requires_grad for parameter in trained.parameters())


def test_a_pair_of_modules_is_the_same(model, trained):
    class Half(nn.Module):
        def __init__(self, verb: str) -> None:
            super().__init__()
            self.network, self.verb = copy.deepcopy(trained), verb

        def forward(self, x: Tensor) -> Tensor:
            return getattr(self.network, self.verb)(x)

    pair = LaplacianAutoencoder.from_trained(Half("encode"), Half("decode"), random_state=0, device="cpu")
    theirs = pair.fit(images(150)).model_
    x = torch.from_numpy(images(20)[:, None]).float()
    with torch.no_grad():
        torch.testing.assert_close(network_of(model.model_.method)(x), network_of(theirs.method)(x))
    # Weights that a half does not use do not change what is unusual.
    gaps = np.corrcoef(model.model_.anomaly_score(images(60))[0], theirs.anomaly_score(images(60))[0])[0, 1]
    assert gaps > 0.8


def test_every_verb(model, tmp_path, trained):
    x = images(40)
    z, z_std = model.transform(x, return_std=True)
    assert z.shape == z_std.shape == (40, 32)
    assert (z_std > 0).any()
    low, high = model.predict_interval(x, 0.9)
    assert 0.8 < ((low <= x) & (x <= high)).mean() < 0.98
    noise = np.random.default_rng(0).uniform(size=(40, 8, 8))
    assert model.p_value(noise).max() < 0.05 < np.median(model.p_value(x))
    hidden = x.copy()
    hidden[:, :4] = np.nan
    assert np.isfinite(model.impute(hidden)).all()
    assert model.explain(x).shape == model.sample(40).shape == x.shape
    model.save(tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = LaplacianAutoencoder.load(tmp_path / "run", network=trained)
    np.testing.assert_array_equal(again.p_value(x), model.p_value(x))


def test_a_network_that_reproduces_everything_tells_by_its_codes():
    """Trained on anything at all, it leaves no error: but the codes of other data lie elsewhere."""

    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            return self.scale * x

    model = LaplacianAutoencoder.from_trained(Same(), Same(), random_state=0, device="cpu").fit(images(300))
    assert "distance" in model.score_parts(images(5))
    far = np.flip(images(40), 0).transpose(0, 2, 1)[:, ::-1] * 0.5 + 0.3  # as smooth, but elsewhere
    assert np.median(model.p_value(far)) < 0.05 < np.median(model.p_value(images(100)))


def table(n: int, seed: int = 0) -> np.ndarray:
    """Six columns of two causes, each about 0 and 1 wide."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(7).normal(size=(2, 6))
    return np.tanh(rng.normal(size=(n, 2)) @ mixing) + 0.1 * rng.normal(size=(n, 6))


SCALE = 10.0 ** np.array([-3, -1, 0, 2, 4, 5])
OFFSET = np.array([0, 5, -3, 1e3, 2e4, -1e5])


def components(x: np.ndarray) -> tuple[nn.Linear, nn.Linear]:
    """Two principal components of rows (n, D), as a trained encoder and decoder in the units of x."""
    mean, scale = x.mean(0), x.std(0)
    v = np.linalg.svd((x - mean) / scale, full_matrices=False)[2][:2]
    encoder, decoder = nn.Linear(x.shape[1], 2), nn.Linear(2, x.shape[1])
    into, back = v / scale, v.T * scale[:, None]
    for parameter, value in zip(
        (*encoder.parameters(), *decoder.parameters()), (into, -into @ mean, back, mean), strict=True
    ):
        parameter.data = torch.from_numpy(value)  # 64 bits: offsets are large
    return encoder.float(), decoder.float()


def from_trained(*modules: nn.Module, **parameters) -> LaplacianAutoencoder:
    return LaplacianAutoencoder.from_trained(*modules, random_state=0, device="cpu", **parameters)


def through(encoder: nn.Module, decoder: nn.Module, x: np.ndarray) -> np.ndarray:
    """What the modules themselves say of x."""
    with torch.no_grad():
        return decoder(encoder(torch.from_numpy(x).float())).numpy()


def of_numbers(shape: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    n = math.prod(shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(n, 3)), nn.Sequential(nn.Linear(3, n), nn.Unflatten(1, shape))


ROWS = table(200)
WINDOWS = 1e3 + 50 * np.cumsum(np.random.default_rng(0).normal(size=(60, 8, 2)), 1)
SIGNED = np.tanh(np.random.default_rng(0).normal(size=(60, 3, 8, 8)))


@pytest.mark.filterwarnings("ignore:held-out samples are reconstructed no better")
@pytest.mark.parametrize(
    ("x", "modules"),
    [
        (50 + 3 * ROWS, components(50 + 3 * ROWS)),
        ((ROWS - ROWS.min(0)) / np.ptp(ROWS, 0), components((ROWS - ROWS.min(0)) / np.ptp(ROWS, 0))),
        (np.round(50 + 30 * ROWS).astype(int), components(np.round(50 + 30 * ROWS))),
        (WINDOWS, of_numbers((8, 2))),
        (SIGNED, of_numbers((3, 8, 8))),
        ((SIGNED + 1) * 100, of_numbers((3, 8, 8))),
        (SIGNED > 0, of_numbers((3, 8, 8))),
    ],
    ids=["about 50", "min-max", "integers", "windows", "images in [-1, 1]", "images to 200", "booleans"],
)
def test_the_network_gets_the_data_as_they_are(x, modules):
    model = from_trained(*modules).fit(x)
    expected = through(modules[0], modules[1], x)
    np.testing.assert_allclose(model.reconstruct(x), expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    back = model.inverse_transform(model.transform(x))
    np.testing.assert_allclose(back, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.filterwarnings("ignore:held-out samples are reconstructed no better")
@pytest.mark.parametrize("kind", [np.uint8, np.int64])
def test_integer_images_are_divided_by_255(kind, capsys):
    x, modules = ((SIGNED + 1) * 127.5).astype(kind), of_numbers((3, 8, 8))
    model = from_trained(*modules).fit(x)
    assert capsys.readouterr().err == "the images are whole numbers: the network gets them divided by 255\n"
    np.testing.assert_allclose(model.reconstruct(x) / 255, through(*modules, x / 255), atol=1e-6)


class Scaled(nn.Module):
    """A module of columns about 0 and 1 wide, for columns in other units."""

    def __init__(self, module: nn.Module, decodes: bool) -> None:
        super().__init__()
        self.module, self.decodes = module, decodes

    def forward(self, x: Tensor) -> Tensor:
        scale, offset = torch.from_numpy(SCALE), torch.from_numpy(OFFSET)
        if self.decodes:
            return (self.module(x) * scale + offset).to(x.dtype)
        return self.module(((x - offset) / scale).to(x.dtype))


def test_units_of_columns_do_not_count(tmp_path):
    """Columns from 1e-3 to 1e5 wide: what is unusual, and everything else, is that of the same columns 1 wide."""
    plain, new = table(200), table(80, seed=1)
    encoder, decoder = components(plain)
    same = from_trained(encoder, decoder).fit(plain)
    others = Scaled(encoder, False), Scaled(decoder, True)
    model = from_trained(*others).fit(plain * SCALE + OFFSET)
    holes = np.where(np.random.default_rng(0).random(new.shape) < 0.2, np.nan, 1.0)
    verbs = (
        lambda m, x: m.reconstruct(x),
        lambda m, x: m.predict_interval(x, 0.8)[0],
        lambda m, x: m.impute(x * holes),
        lambda m, x: m.sample(len(x), random_state=1, noise=False),  # with it sums of columns count, which have units
    )
    for verb in verbs:
        np.testing.assert_allclose((verb(model, new * SCALE + OFFSET) - OFFSET) / SCALE, verb(same, new), atol=1e-3)
    assert model.score(new * SCALE + OFFSET) == pytest.approx(same.score(new) - np.log(SCALE).sum(), abs=1e-3)
    np.testing.assert_allclose(model.explain(new * SCALE + OFFSET), same.explain(new), atol=0.05)
    model.save(tmp_path / "run")
    again = LaplacianAutoencoder.load(tmp_path / "run", network=others)
    for verb in (*verbs, lambda m, x: m.p_value(x)):
        np.testing.assert_array_equal(verb(again, new * SCALE + OFFSET), verb(model, new * SCALE + OFFSET))


def test_what_is_unusual_in_any_column_is_found():
    """A network whose weights are in these units too, from 1e-5 to 1e5."""
    model = from_trained(*components(table(400) * SCALE + OFFSET)).fit(table(400, seed=2) * SCALE + OFFSET)
    new = table(300, seed=1)
    assert np.mean(model.p_value(new * SCALE + OFFSET) <= 0.1) < 0.2
    column = np.arange(len(new)) % 6
    new[np.arange(len(new)), column] += 2.5
    flagged = model.p_value(new * SCALE + OFFSET) <= 0.05
    assert min(np.mean(flagged[column == i]) for i in range(6)) > 0.8


def test_a_given_noise_is_in_the_units_of_the_network():
    x = 50 + 30 * ROWS
    residual = float((x - through(*components(x), x)).std())
    scores = [from_trained(*components(x), likelihood=Gaussian(s * residual)).fit(x).score(x) for s in (0.1, 1.0, 10.0)]
    assert scores[1] > max(scores[0], scores[2])


def test_wrong_units_are_warned_of():
    with pytest.warns(UserWarning, match=r"no better than by their mean.*X is in other units than it was trained on"):
        from_trained(*components(ROWS)).fit(50 + 3 * ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_trained(*components(ROWS)).fit(ROWS)


def test_columns_that_are_no_numbers_are_refused():
    frame = pd.DataFrame(ROWS, columns=list("abcdef"))
    for column in (np.where(ROWS[:, 0] > 0, "up", "down"), ROWS[:, 0] > 0):
        with pytest.raises(DataError, match=r"a trained network gets X as it is, and 'f' \((category|boolean)\)"):
            from_trained(*components(ROWS)).fit(frame.assign(f=column))
    model = from_trained(*components(ROWS)).fit(frame)
    np.testing.assert_allclose(model.reconstruct(frame), through(*components(ROWS), ROWS), atol=1e-6)


def test_the_size_of_the_code_is_that_of_the_modules(trained, capsys):
    x = images(40)
    with pytest.raises(ConfigError, match=r"latent_dim=5, but the encoder returns codes of shape \(\d"):
        LaplacianAutoencoder.from_trained(trained, latent_dim=5, device="cpu").fit(x)
    model = LaplacianAutoencoder.from_trained(trained, latent_dim=32, device="cpu", verbose=True).fit(x)
    assert model.latent_dim_ == model.model_.config.model.latent_dim == 32
    plain = LaplacianAutoencoder.from_trained(trained, device="cpu", verbose=True).fit(x)
    assert plain.model_.config.model.latent_dim == 32
    assert "K = None" not in capsys.readouterr().err


def test_logits_have_no_unit():
    x, modules = 1 / (1 + np.exp(-ROWS)), of_numbers((6,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = from_trained(*modules, likelihood="bernoulli").fit(x)
    np.testing.assert_allclose(model.reconstruct(x), 1 / (1 + np.exp(-through(*modules, x))), atol=1e-6)
    with pytest.raises(ConfigError, match=r"takes values from 0 to 1.*these run from -?\d"):
        from_trained(*modules, likelihood="bernoulli").fit(ROWS)


class Ends(nn.Module):
    """A decoder that ends in a sigmoid which is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 6)

    def forward(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.layer(z)).reshape(-1, 6)


@pytest.mark.parametrize("decoder", [nn.Sequential(nn.Linear(3, 6), nn.Sigmoid()), Ends()])
def test_probabilities_where_logits_are_expected_are_refused(decoder):
    x, encoder = 1 / (1 + np.exp(-ROWS)), nn.Linear(6, 3)
    with pytest.raises(ConfigError, match="the decoder ends in a sigmoid, but the bernoulli likelihood expects logits"):
        from_trained(encoder, decoder, likelihood="bernoulli").fit(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from_trained(encoder, decoder).fit(x)  # a mean within [0, 1] is fine


def test_frozen_weights_are_certain(tmp_path):
    encoder, decoder = components(ROWS)
    encoder.requires_grad_(False)
    model = from_trained(encoder, decoder).fit(ROWS)
    z, z_std = model.transform(ROWS, return_std=True)
    np.testing.assert_allclose(z_std, 0, atol=1e-9)
    assert np.all(model.inverse_transform(z, return_std=True)[1] > 0)
    model.save(tmp_path / "run")
    again = LaplacianAutoencoder.load(tmp_path / "run", network=components(ROWS))  # frozen or not
    np.testing.assert_array_equal(again.p_value(ROWS), model.p_value(ROWS))
    np.testing.assert_allclose(again.transform(ROWS, return_std=True)[1], 0, atol=1e-9)
    with pytest.raises(ConfigError, match="needs a diagonal hessian"):
        from_trained(encoder, decoder, hessian="kfac").fit(ROWS)
    decoder.requires_grad_(False)
    with pytest.raises(ConfigError, match="all weights of the network have requires_grad=False"):
        from_trained(encoder, decoder).fit(ROWS)


class Counts(nn.Module):
    """A layer that keeps something of every call, in evaluation mode too."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return x


@pytest.mark.parametrize("how", [{}, {"method": "online", "epochs": 2}])
def test_modules_are_only_read(how):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), Counts(), nn.Linear(8, 2))
    decoder = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8).eval(), nn.Linear(8, 6))
    pair = nn.ModuleList([encoder, decoder])
    encoder(torch.from_numpy(ROWS).float())
    before = {name: value.clone() for name, value in pair.state_dict().items()}
    modes = [module.training for module in pair.modules()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = from_trained(encoder, decoder, **how).fit(ROWS)
        model.p_value(ROWS)
    assert all(torch.equal(before[name], value) for name, value in pair.state_dict().items())
    assert modes == [module.training for module in pair.modules()]
    assert all(parameter.requires_grad for parameter in pair.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in pair.modules())


@pytest.mark.parametrize("encoder", [None, "mlp"])
def test_a_network_that_is_not_there_is_refused(encoder):
    with pytest.raises(ConfigError, match="expected a trained torch"):
        LaplacianAutoencoder.from_trained(encoder)


def test_a_model_of_another_shape_is_refused_in_words():
    class Own(nn.Module):
        def __init__(self, wide: int, code: int) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(wide, 2), nn.Linear(code, wide)

        def encode(self, x: Tensor) -> Tensor:
            return self.down(x)

        def decode(self, z: Tensor) -> Tensor:
            return self.up(z)

    x = np.random.default_rng(0).standard_normal((40, 3))
    with pytest.raises(ConfigError, match=r"Own.encode does not take its input, of shape \(\d+, 3\)"):
        LaplacianAutoencoder.from_trained(Own(4, 2)).fit(x)
    with pytest.raises(ConfigError, match=r"Own.decode does not take its input, of shape \(\d+, 2\)"):
        LaplacianAutoencoder.from_trained(Own(3, 5)).fit(x)
