"""Distances of feature maps at their positions: against brute force, by simulation, with defects among the training."""

from __future__ import annotations

from dataclasses import replace

import torch
from scipy.stats import kstest

from lapae.score import patches
from lapae.score.patches import PatchDistances, to_pixels


def maps(n: int, seed: int, side: int = 6, d: int = 4) -> torch.Tensor:
    """Maps whose positions differ in mean and in variance, with features that depend on each other."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(d, d, generator=torch.Generator().manual_seed(7))
    scale = torch.linspace(0.1, 3, side)[None, :, None, None]
    return torch.randn(n, side, side, d, generator=generator) @ mix * scale + torch.arange(side)[:, None]


def test_left_out_in_closed_form_is_left_out_by_brute_force(monkeypatch):
    monkeypatch.setattr(patches, "ROUNDS", 0)
    monkeypatch.setattr(patches, "RIDGE", 1e-9)
    x = maps(30, 0).double()
    found = PatchDistances.fit(x).distances(x, torch.arange(30))
    for i in (0, 11, 29):
        others = PatchDistances.fit(torch.cat([x[:i], x[i + 1 :]]))
        torch.testing.assert_close(found[i], others.distances(x[i : i + 1])[0], rtol=1e-5, atol=1e-5)


def test_models_that_compared_positions_with_their_neighbours_keep_their_score(monkeypatch):
    """The least Mahalanobis distance from a position and its neighbours; now it is that from the position."""
    monkeypatch.setattr(patches, "ROUNDS", 0)
    monkeypatch.setattr(patches, "RIDGE", 1e-9)
    x, new = maps(40, 0).double(), maps(3, 1).double()
    now = PatchDistances.fit(x)
    gap = new[:, 2, 5] - now.mean[2, 5]
    own = torch.einsum("ni,ij,nj->n", gap, torch.linalg.inv(x[:, 2, 5].T.cov()), gap).log()
    torch.testing.assert_close(now.distances(new)[:, 2, 5], own, rtol=1e-5, atol=1e-5)
    fitted = replace(now, reach=None)
    every = []
    for row, column in ((1, 4), (1, 5), (2, 4), (2, 5), (3, 4), (3, 5)):  # at the right edge
        here = x[:, row, column]
        gap = new[:, 2, 5] - here.mean(0)
        every.append(torch.einsum("ni,ij,nj->n", gap, torch.linalg.inv(here.T.cov()), gap).log())
    torch.testing.assert_close(fitted.distances(new)[:, 2, 5], torch.stack(every).amin(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(fitted(new, torch.full((3,), -1)), fitted(new))


def test_models_that_left_positions_out_keep_their_score():
    x, new = maps(40, 0), maps(3, 1)
    now = PatchDistances.fit(x)
    old = PatchDistances(now.mean, now.factor, now.kept > 0, now.usual)
    place = (new[:, 2, 5] - now.mean[2, 5]) @ now.factor[2, 5].T
    torch.testing.assert_close(old.distances(new)[:, 2, 5], place.square().sum(1).log())
    torch.testing.assert_close(old.of_images(new), old(new).flatten(1).amax(1))


def test_new_images_score_as_those_left_out_do():
    p = []
    for seed in range(40):
        x, new = maps(30, 2 * seed), maps(10, 2 * seed + 1)
        fitted = PatchDistances.fit(x)
        usual, scores = fitted.of_images(x, torch.arange(30)), fitted.of_images(new)
        p += [(1 + int((usual >= score).sum())) / 31 for score in scores]
    assert kstest(p, "uniform").pvalue > 1e-3 or sum(value <= 0.1 for value in p) / len(p) < 0.1


def test_the_share_of_normal_pixels_below_a_p_value_is_at_most_that():
    for rate in (0.05, 0.2, 0.5):
        shares = []
        for seed in range(20):
            fitted = PatchDistances.fit(maps(40, 2 * seed))
            shares.append(float((fitted.p_values(fitted(maps(20, 2 * seed + 1))) <= rate).double().mean()))
        assert sum(shares) / len(shares) <= rate + 0.02


def test_defects_here_and_there_among_the_training_images_are_not_learned():
    x, new = maps(60, 0), maps(20, 1)
    new[:10, 3:, 3:] += 40
    clean = PatchDistances.fit(x)
    for i in range(6):  # one in ten, each in another place
        x[i, i % 4 : i % 4 + 3, i // 2 : i // 2 + 3] += 40
    spoilt = PatchDistances.fit(x)
    assert max(spoilt.kept[i, i % 4 + 1, i // 2 + 1] for i in range(6)) < 0.2
    assert spoilt.kept.mean() > 0.9
    for fitted in (clean, spoilt):
        score = fitted.of_images(new)
        assert score[:10].min() > score[10:].max()


def test_pixels_of_a_defect_are_those_of_its_position():
    x, new = maps(60, 0), maps(1, 1)
    fitted = PatchDistances.fit(x)
    new[0, 4, 1] += 50
    row, column = divmod(int(to_pixels(fitted(new), (60, 30))[0].argmax()), 30)
    assert 30 <= row < 60
    assert column < 15
