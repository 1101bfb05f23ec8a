"""The examples in the docstrings of the estimator run, and the main methods have one."""

from __future__ import annotations

import doctest

import pytest

from lapae import LaplacianAutoencoder

MAIN = (
    *("fit", "transform", "inverse_transform", "reconstruct", "predict_interval", "score_samples", "p_value"),
    *("predict", "predict_confidence", "decision_function", "discoveries", "explain", "counterfactual", "impute"),
    *("impute_interval", "sample", "distance", "geodesic", "save", "from_trained"),
)


@pytest.fixture(scope="module")
def example() -> dict[str, object]:
    """Names that the example of the class leaves behind."""
    names: dict[str, object] = {}
    (test,) = found(LaplacianAutoencoder, "LaplacianAutoencoder", names)
    run(test)
    return names


def found(thing: object, name: str, names: dict[str, object]) -> list[doctest.DocTest]:
    """Return the examples of a docstring, with `names` to start from."""
    text = getattr(thing, "__doc__", None) or ""
    test = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    test.globs = names  # not a copy: the class leaves its names to the methods
    return [test] if test.examples else []


def run(test: doctest.DocTest) -> None:
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(test, out=said.append, clear_globs=False)
    assert not failed, "".join(said)


@pytest.mark.parametrize("name", MAIN)
def test_the_example_of_a_method_goes_on_with_that_of_the_class(name, example):
    (test,) = found(getattr(LaplacianAutoencoder, name), name, dict(example))
    run(test)


def test_an_example_that_is_wrong_fails():
    (test,) = found(type("Wrong", (), {"__doc__": ">>> 1 + 1\n3\n"}), "Wrong", {})
    with pytest.raises(AssertionError, match="Expected"):
        run(test)
