"""The classifier of clean data, its cache, and calibration downstream."""

import json

import pytest
import torch
from bars import data_of, images, model_of

from lapae_paper.tasks.classification import ClassificationOptions, evaluate
from lapae_paper.tasks.classifier import class_probabilities, train_classifier


@pytest.fixture(scope="module")
def classifier():
    return train_classifier(*images(512), 2, epochs=4)


def judged(method, n, **options):
    (x, y), train = images(n, 7), images(512)[0][:n]  # of the same classes, in turn
    return evaluate(model_of(method), data_of(x, train, y.numpy()), ClassificationOptions(epochs=20, **options))


def test_every_method(method):
    found = judged(method, 60, modes=2, average=2)
    result = found.to_dict()
    json.dumps(result, allow_nan=False)
    assert result["clean"]["accuracy"] > 0.95
    assert result["hidden"]["accuracy"] <= result["clean"]["accuracy"]
    assert set(result["imputed"]) == {"accuracy", "ece", "mce", "rmsce"}
    assert "classification_reliability" in found.figures()


def test_fully_observed_is_clean_and_reconstructions_are_another_choice():
    found = judged("ae", 40, mask="none")
    assert found.metrics["imputed"] == pytest.approx(found.metrics["clean"], abs=1e-5)
    other = judged("ae", 40, mask="none", keep_observed=False)
    assert other.metrics["imputed"] != found.metrics["imputed"]


def test_probabilities_are_a_mean_over_samples_with_dropout_off(classifier):
    x = images(5, 7)[0]
    samples = torch.stack([x, x.flip(0)])
    p = class_probabilities(classifier, samples, batch_size=2)
    with torch.no_grad():
        by_hand = 0.5 * (classifier(x).softmax(1) + classifier(x.flip(0)).softmax(1))
    torch.testing.assert_close(p, by_hand)
    assert not classifier.training


def test_cache(tmp_path):
    x, y = images(64)
    done = []
    options = {"epochs": 1, "cache": tmp_path, "progress": done.append}
    first = train_classifier(x, y, 2, **options)
    assert sum(done) == 64
    second = train_classifier(x, y, 2, **options)
    assert sum(done) == 64, "read, not trained"
    assert not second.training
    assert torch.equal(first(x), second(x))
    train_classifier(x.flip(0), y, 2, **options)
    train_classifier(x, y, 2, **{**options, "seed": 1})
    assert len(list(tmp_path.iterdir())) == 3
    assert sum(done) == 3 * 64


def test_a_damaged_cache_is_trained_anew(tmp_path):
    x, y = images(64)
    first = train_classifier(x, y, 2, epochs=1, cache=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.warns(UserWarning, match="is damaged.*; it is trained again"):
        second = train_classifier(x, y, 2, epochs=1, cache=tmp_path)
    assert torch.equal(first(x), second(x))
    assert torch.equal(train_classifier(x, y, 2, epochs=1, cache=tmp_path)(x), first(x))  # without a warning


def test_tables_and_the_global_generator():
    x, y = torch.randn(30, 4), torch.arange(30) % 3
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model = train_classifier(x, y, 3, epochs=1)
    assert torch.equal(before, torch.get_rng_state())
    assert model(x).shape == (30, 3)
