"""Registries: one list for each kind of name, that other packages add to."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import get_args

import pytest

from lapae.config import ACTIVATIONS, HESSIANS, LIKELIHOODS, METHODS, NETWORKS
from lapae.curvature import likelihoods
from lapae.curvature.ggn import DiagonalMethod
from lapae.errors import ConfigError
from lapae.registry import Entry, Registry, listing
from lapae.tasks import TASKS


@pytest.mark.parametrize(
    "registry", [METHODS, NETWORKS, LIKELIHOODS, ACTIVATIONS, TASKS], ids=lambda registry: registry.kind
)
def test_every_name_leads_to_something_and_has_a_title_of_its_own(registry):
    titles = registry.titles()
    assert list(titles) == list(registry)
    assert len(set(titles.values())) == len(titles)
    for entry in registry.values():
        assert callable(entry.load())


def test_hessians_and_likelihoods_are_those_of_the_engine():
    assert {name for name, hessian in HESSIANS.items() if hessian.form == "diagonal"} == set(get_args(DiagonalMethod))
    assert all(likelihoods.LIKELIHOODS[name] is entry.load() for name, entry in LIKELIHOODS.items())


def test_a_registry_is_a_dictionary():
    names: Registry[Entry] = Registry("colour", {"red": Entry("a colour", "math:pi")})
    names["blue"] = Entry("another", "math")
    assert dict(names) == {"red": names["red"], "blue": names["blue"]}
    assert names["red"].load() == pytest.approx(3.14159, abs=1e-4)
    assert names["blue"].load().pi == names["red"].load()
    with pytest.raises(KeyError):
        names["rad"]
    with pytest.raises(ConfigError, match=r"unknown colour 'rad': did you mean 'red'\? expected one of red, blue"):
        names.find("rad")
    del names["blue"]
    assert list(names) == ["red"]
    assert listing(names.titles()) == "  red  a colour"


def test_entry_points_add_names_and_replace_none(monkeypatch):
    points = [
        EntryPoint("sqrt", "math:sqrt", "lapae.colours"),  # the thing itself: its docstring is the title
        EntryPoint("red", "math:tau", "lapae.colours"),
        EntryPoint("broken", "no_such_module:thing", "lapae.colours"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == "lapae.colours" else [])
    names: Registry[Entry] = Registry("colour", {"red": Entry("a colour", "math:pi")}, group="lapae.colours")
    assert list(names) == ["red", "sqrt", "broken"]
    assert names["red"].target == "math:pi"
    assert names["sqrt"].load()(4.0) == 2.0
    titles = names.titles()
    assert titles["sqrt"] == "Return the square root of x."
    assert "no_such_module" in titles["broken"]
    with pytest.raises(ConfigError, match="the colour 'broken' of no_such_module:thing cannot be loaded"):
        names.find("broken")
