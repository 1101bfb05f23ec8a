"""Generation, and the numbers that show copying."""

import json

import pytest
import torch
from bars import SHAPE, data_of, images, model_of, trained

from lapae_paper.tasks.generation import GenerationOptions, describe, evaluate
from lapae_paper.tasks.noise import from_noise, from_prior


def test_every_method(method):
    data = data_of(images(20, 9)[0], train=images(100)[0])
    found = evaluate(model_of(method), data, GenerationOptions(n=20, steps=2, average=2))
    json.dumps(found.to_dict(), allow_nan=False)
    assert set(found.sets) == {"noise", "data"} | ({"prior"} if method.latent_prior else set())
    for part in found.sets.values():
        assert part.samples.shape == (20, *SHAPE)
        assert part.diversity > 0
    assert len(found.figures()) == 2 * len(found.sets)


def test_distances_by_hand():
    train = torch.zeros(3, 1, 1, 2)
    train[1] = 1.0
    samples = torch.tensor([[0.0, 0.5], [1.0, 1.0], [1.0, 0.0]])[:, None, None]
    found = describe(samples, train, batch_size=2)
    assert found.nearest_distance == pytest.approx((0.5 + 0 + 1) / 3)
    assert found.diversity == pytest.approx((1.25**0.5 + 1.25**0.5 + 1) / 3)
    assert torch.equal(found.nearest[1], train[1])


def test_a_copy_shows():
    train = images(50)[0]
    assert describe(train[:5], train).nearest_distance == 0
    assert describe(train[:1].expand(4, *SHAPE), train).diversity == 0


def test_sources():
    method = trained("vae")
    assert from_prior(method, 3, 7).shape == (7, *SHAPE)
    with pytest.raises(ValueError, match="no prior"):
        from_prior(trained("bbb"), 3, 7)
    a, b, c = (from_noise(trained("bbb"), SHAPE, 11, seed=s, steps=1) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert len(a) == 11
    with pytest.raises(ValueError, match="n=0"):
        from_noise(method, SHAPE, 0)
    with pytest.raises(ValueError, match="at least 2"):
        describe(torch.zeros(1, 4), torch.zeros(3, 4))
