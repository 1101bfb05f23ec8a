"""Nearest neighbours against scikit-learn, and semi-supervised classification with every method."""

import json
from dataclasses import replace

import numpy as np
import pytest
from bars import data_of, images, model_of, trained
from sklearn.neighbors import KNeighborsClassifier

from lapae.errors import ConfigError
from lapae.predict import Predictive
from lapae.predict.decode import encode_draws
from lapae_paper.tasks.knn import Voting, choose_k, votes
from lapae_paper.tasks.semi_supervised import SemiSupervisedOptions, evaluate


def judged(method, x, y, labels, **options):
    return evaluate(model_of(method), data_of(x, y=np.asarray(y)), SemiSupervisedOptions(labels, **options))


def test_every_method(method):
    found = judged(method, *images(120, 4), (1, 5, 20), n_embeddings=10, repetitions=2)
    result = found.to_dict()
    json.dumps(result, allow_nan=False)
    assert found.accuracy.shape == (3, 2)
    assert result["accuracy"][2] > 0.8
    assert set(found.figures()) == {"semi_supervised"}


@pytest.mark.parametrize("k", [1, 3, 4, 10])
def test_votes_are_those_of_scikit_learn(k):
    rng = np.random.default_rng(0)
    points, queries = rng.normal(size=(60, 2)), rng.normal(size=(40, 2))
    y = rng.integers(3, size=60)
    voting = Voting(y)
    got = voting.classes[voting.predict(votes(points, voting.indicators, queries, [2, k])[1]).argmax(1)]
    np.testing.assert_array_equal(got, KNeighborsClassifier(k).fit(points, y).predict(queries))
    many = rng.integers(2, size=(60, 4))
    voting = Voting(many)
    got = voting.predict(votes(points, voting.indicators, queries, [k])[0])
    np.testing.assert_array_equal(got, KNeighborsClassifier(k).fit(points, many).predict(queries))


def test_votes_in_pieces_and_in_any_order(monkeypatch):
    rng = np.random.default_rng(0)
    points, queries, ks = rng.normal(size=(60, 2)), rng.normal(size=(40, 2)), [7, 1, 7, 30]
    indicators = Voting(rng.integers(3, size=60)).indicators
    whole = votes(points, indicators, queries, ks)
    monkeypatch.setattr("lapae_paper.tasks.knn.CELLS", 7 * 30 * 3)
    np.testing.assert_array_equal(votes(points, indicators, queries, ks), whole)
    for k, found in zip(ks, whole, strict=True):
        np.testing.assert_allclose(found, votes(points, indicators, queries, [k])[0], rtol=1e-6)


def test_accuracy_of_classes_and_attributes():
    voting = Voting(np.array([4, 9, 4]))
    assert voting.accuracy(np.array([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), voting.indicators) == pytest.approx(1 / 3)
    voting = Voting(np.array([[0, 1], [1, 1]]))
    np.testing.assert_allclose(voting.accuracy(np.array([[0.2, 0.4], [0.6, 0.9]]), voting.indicators), [1.0, 0.5])


def test_k_is_chosen_between_data_and_not_between_copies():
    """Labels are pure chance per sample: among its copies k = 1 would look perfect; among others it does not."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(40, 1, 2))
    points = centre + 1e-3 * rng.normal(size=(40, 10, 2))
    y = np.repeat([0, 1], [30, 10])[rng.permutation(40)]
    voting = Voting(y)
    assert choose_k(points, voting.indicators, voting, (1, 100), 0) == 100
    assert choose_k(points, voting.indicators, voting, (1, 10), 0) == 100  # ten data, ten copies each


def test_k_for_single_labels():
    voting = Voting(np.array([0, 1]))
    points = np.array([[[0.0, 0.0]], [[5.0, 5.0]]])
    assert choose_k(points, voting.indicators, voting, (1, 5), 0) == 1
    copies = points + 0.1 * np.random.default_rng(0).normal(size=(2, 10, 2))
    assert choose_k(copies, voting.indicators, voting, (1, 5), 0) in (1, 5)


def test_attributes():
    x, y = images(80, 4)
    attributes = np.stack([y.numpy(), 1 - y.numpy(), np.zeros(80, int)], 1)
    names = ("down", "across", "never")
    data = data_of(x, y=attributes)
    data = replace(data, space=replace(data.space, label_names=names))
    result = evaluate(model_of("bbb"), data, SemiSupervisedOptions((10,), n_embeddings=5, repetitions=2)).to_dict()
    assert set(result["attributes"]) == set(names)
    assert result["attributes"]["never"] == [1.0]
    assert result["attributes"]["down"] == pytest.approx(result["attributes"]["across"], abs=0.1)
    assert result["accuracy"][0] == pytest.approx(np.mean([v[0] for v in result["attributes"].values()]))


def test_deterministic_encoders_embed_once_and_others_differ():
    x = images(6)[0]
    assert encode_draws(trained("ae"), x, 9).shape == (6, 1, 3)
    assert encode_draws(trained("ensemble"), x, 9).shape == (6, 4, 3)
    codes = encode_draws(trained("bbb"), x, 25)
    assert codes.shape == (6, 25, 3)
    assert codes.std(1).min() > 0


def test_labels_are_those_of_the_labelled_data_and_these_are_not_classified(monkeypatch):
    """Neighbours are sought among all embeddings of each labelled sample, with its own label, for all other data."""
    x, y = images(30, 4)
    asked = []

    def look(points, indicators, queries, ks):
        asked.append((points, indicators, queries))
        return votes(points, indicators, queries, ks)

    monkeypatch.setattr("lapae_paper.tasks.semi_supervised.votes", look)
    judged("bbb", x, y, (3,), n_embeddings=7, repetitions=1)
    [(points, indicators, queries)] = asked
    codes = encode_draws(trained("bbb"), x, 7, seed=1).numpy()  # (30, 7, K), of the first repetition
    gaps = np.abs(codes[None] - points.reshape(6, 1, 7, -1)).max((2, 3))
    labelled = gaps.argmin(1)
    assert gaps.min(1).max() < 1e-5
    assert len(set(labelled.tolist())) == 6
    np.testing.assert_array_equal(indicators.reshape(6, 7, 2).argmax(2), np.repeat(y[labelled][:, None], 7, 1))
    mean = model_of("bbb").predict(x, ("codes",), Predictive("mc", 7, 0)).z_mean
    rest = np.setdiff1d(np.arange(30), labelled)
    np.testing.assert_allclose(queries, mean.reshape(30, -1)[rest], atol=1e-5)


def test_errors():
    x, y = images(20)
    with pytest.raises(ConfigError, match="leave nothing"):
        judged("ae", x, y, (10,))
    with pytest.raises(ConfigError, match="two classes"):
        judged("ae", x, np.zeros(20, int), (1,))
    with pytest.raises(ValueError, match="0 or 1"):
        Voting(np.array([[2, 0]]))
    with pytest.raises(ConfigError, match="from 1"):
        judged("ae", x, y, (0,))
