"""A small trained method of each kind, on two blurred shapes."""

import functools

import torch
from trained import in_splits

from lapae.config import Config, MethodConfig
from lapae.curvature.likelihoods import Gaussian
from lapae.data import Data, Split
from lapae.methods import build
from lapae.methods.step import StepContext
from lapae.model import Model
from lapae.networks import mlp
from lapae.space import Space

SHAPE = (1, 8, 8)
SPACE = Space("image", SHAPE, name="bars")


def images(n, seed=0):
    """Bars across (class 0) and bars down (class 1) of random place and strength, with some noise: x and y."""
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % 2
    place = torch.randint(1, 7, (n,), generator=g)
    strength = 0.6 + 0.4 * torch.rand(n, 1, 1, generator=g)
    line = torch.exp(-0.5 * (torch.arange(8)[None] - place[:, None]) ** 2)
    across = line[:, :, None].expand(n, 8, 8)
    x = torch.where(y[:, None, None] == 0, across, across.transpose(1, 2)) * strength
    return (x + 0.03 * torch.randn(n, 8, 8, generator=g)).clamp(0, 1)[:, None], y


def train(method, x, steps=300, lr=5e-3):
    optimizer = torch.optim.Adam(method.parameters(), lr=lr)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        index = torch.randint(len(x), (64,), generator=generator)
        optimizer.zero_grad()
        method(x[index], StepContext(generator)).backward()
        optimizer.step()
    return method.eval()


@functools.cache
def trained(name, latent_dim=3):
    torch.manual_seed(0)
    x, _ = images(512)
    config = MethodConfig.taking(name, members=4, dropout=0.1)
    factory = functools.partial(mlp, SHAPE, latent_dim, hidden=(32,))
    return train(build(config, factory, Gaussian(0.1), len(x)), x)


def model_of(method) -> Model:
    """A method, or that of a name, as tasks take it."""
    return Model(trained(method) if isinstance(method, str) else method, Config(), SPACE)


def data_of(test, train=None, y=None) -> Data:
    """Images to judge by, with their labels, and to train on: the same where not given."""
    test, train = (Split(x.numpy(), y) for x in (test, test if train is None else train))
    return in_splits(SPACE, train, test, test)
