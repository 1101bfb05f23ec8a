"""The four rules at work on a network with a fixed batch: what each settles at, and that memory is kept."""

from __future__ import annotations

import math

import pytest
import torch
from explicit import HESSIANS, curvature_matrix, curvature_of, data, network
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from lapae.errors import ConfigError
from lapae.methods.laplace import make_precision
from lapae.posterior import RULES, Precision, UpdateRule, update_rule

ALPHA = 0.05
every_form = pytest.mark.parametrize("form", sorted(HESSIANS))


def start(form: str, value: float = 2.0):
    """A precision with H_0 = value I, and a GGN that stays the same."""
    module = network()
    precision = make_precision(module, HESSIANS[form], 1.0, 1.0).double()
    precision.reset(value)
    return precision, curvature_of(form, module, data())


def ggn(form: str) -> torch.Tensor:
    precision, curvature = start(form, 0.0)
    precision.update(0.0, 1.0, curvature)
    return curvature_matrix(precision)


def after(precision: Precision, rule: UpdateRule, curvature, n: int) -> torch.Tensor:
    for _ in range(n):
        precision.update(rule.keep, rule.gain, curvature)
    return curvature_matrix(precision)


@every_form
@pytest.mark.parametrize(("name", "limit"), [("laplacian", 1 / ALPHA), ("nng", 1.0)])
def test_settles_at_a_multiple_of_the_ggn(form, name, limit):
    precision, curvature = start(form)
    assert_close(after(precision, update_rule(name, ALPHA), curvature, 900), limit * ggn(form))


@every_form
def test_redux_is_the_last_ggn_whatever_came_before(form):
    precision, curvature = start(form, 1e6)
    assert_close(after(precision, update_rule("redux", ALPHA), curvature, 1), ggn(form))
    assert_close(after(precision, update_rule("redux", ALPHA), curvature, 3), ggn(form))


@every_form
def test_van_grows_by_the_same_every_step(form):
    precision, curvature = start(form, 0.0)
    ten = after(precision, update_rule("van", ALPHA), curvature, 10)
    assert_close(ten, 10 * ALPHA * ggn(form))
    assert_close(after(precision, update_rule("van", ALPHA), curvature, 10), 2 * ten)


def test_laplacian_at_temperature_one_over_alpha_has_the_scale_of_nng():
    """The temperature that update.py names: without a prior, both give the same variance."""
    module, x = network(), data()
    noise = {}
    for name, temperature in (("laplacian", 1 / ALPHA), ("nng", 1.0)):
        precision = make_precision(module, "exact", 1e-12, temperature).double()
        after(precision, update_rule(name, ALPHA), curvature_of("diagonal", module, x), 900)
        noise[name] = precision.scale_noise(torch.ones(precision.n_weights, dtype=torch.float64))
    assert_close(noise["laplacian"], noise["nng"], rtol=1e-6, atol=0)


@every_form
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_every_k_is_k_updates_with_one_ggn(form, name, k):
    rule = update_rule(name, ALPHA)
    (single, curvature), (skipping, _) = start(form), start(form)
    assert_close(after(skipping, rule.every(k), curvature, 2), after(single, rule, curvature, 2 * k))


@given(name=st.sampled_from(sorted(RULES)), alpha=st.floats(1e-6, 1.0), k=st.integers(1, 50), h=st.floats(0, 1e6))
def test_every_k_by_numbers(name, alpha, k, h):
    rule, fast = update_rule(name, alpha), update_rule(name, alpha).every(k)
    slow = h
    for _ in range(k):
        slow = rule.keep * slow + rule.gain * 3.0
    assert math.isclose(fast.keep * h + fast.gain * 3.0, slow, rel_tol=1e-9)


@pytest.mark.parametrize("alpha", [0.0, -0.1, 1.1, math.nan])
def test_impossible_forgetting(alpha):
    with pytest.raises(ConfigError, match="forgetting"):
        update_rule("laplacian", alpha)


def test_unknown_rule_and_impossible_interval():
    with pytest.raises(ConfigError, match="unknown update 'adam': expected one of laplacian, redux, van, nng"):
        update_rule("adam", 0.1)
    with pytest.raises(ConfigError, match="hessian_every=0"):
        update_rule("nng", 0.1).every(0)
