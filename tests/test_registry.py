"""Registries: one list for each kind of name, that other packages add to."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import get_args

import pytest

from lapae.config import ACTIVATIONS, HESSIANS, LIKELIHOODS, METHODS, NETWORKS
from lapae.curvature import likelihoods
from lapae.curvature.ggn import DiagonalMethod
from lapae.errors import ConfigError
from lapae.evaluate import TASKS
from lapae.registry import Entry, Registry, entry_points, listing, research_shown


@pytest.mark.parametrize(
    "registry", [METHODS, NETWORKS, LIKELIHOODS, ACTIVATIONS, TASKS], ids=lambda registry: registry.kind
)
def test_every_name_leads_to_something_and_has_a_title_of_its_own(registry):
    with research_shown():
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


def test_what_is_for_research_is_hidden_and_can_be_named():
    names: Registry[Entry] = Registry("colour", {"red": Entry("a colour", "math:pi")})
    names["infrared"] = Entry("not to be seen", "math:e", research=True)
    assert names.visible() == ["red"]
    assert names.titles() == {"red": "a colour"}
    assert list(names) == ["red", "infrared"]
    assert names.find("infrared").load() == pytest.approx(2.71828, abs=1e-4)
    with pytest.raises(ConfigError, match=r"unknown colour 'green': expected one of red$"):
        names.find("green")
    with pytest.raises(ConfigError, match=r"did you mean 'infrared'\? expected one of red$"):
        names.find("infra-red")
    with research_shown():
        assert names.visible() == list(names)
        assert "infrared" in names.titles()
    assert names.visible() == ["red"]


COLOURS = """
[console_scripts]
red = other:main

[lapae.colours]
# the thing itself: its docstring is the title
sqrt = math:sqrt
red=math:tau
broken = no_such_module:thing [extra]
"""


def package(folder: Path, name: str, points: str) -> None:
    """As an installed package looks."""
    info = folder / f"{name}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.partition('-')[0]}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(points)


def test_entry_points_are_those_of_importlib(monkeypatch, tmp_path):
    package(tmp_path / "a", "paint-1", COLOURS)
    package(tmp_path / "b", "paint-2", "[lapae.colours]\nold = math:e\n")  # hidden by the one before it on the path
    package(tmp_path / "b", "brush-1", "[lapae.colours]\nblue = os:path.join\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(tmp_path / "a"), str(tmp_path / "b"), *sys.path])
    expected = {
        p.name: p.value.removesuffix(" [extra]") for p in importlib.metadata.entry_points(group="lapae.colours")
    }
    assert entry_points("lapae.colours") == expected
    assert expected.keys() == {"sqrt", "red", "broken", "blue"}
    for group in ("lapae.commands", "lapae.methods", "lapae.networks", "console_scripts"):
        known = {p.name: p.value.partition("[")[0].strip() for p in importlib.metadata.entry_points(group=group)}
        assert entry_points(group) == known
    assert Registry("colour", {}, group="lapae.colours")["blue"].load() is os.path.join


def test_entry_points_add_names_and_replace_none(monkeypatch, tmp_path):
    package(tmp_path, "paint-1", COLOURS)
    monkeypatch.syspath_prepend(tmp_path)
    names: Registry[Entry] = Registry("colour", {"red": Entry("a colour", "math:pi")}, group="lapae.colours")
    assert list(names) == ["red", "sqrt", "broken"]
    assert names["red"].target == "math:pi"
    assert names["sqrt"].load()(4.0) == 2.0
    titles = names.titles()
    assert titles["sqrt"] == "Return the square root of x."
    assert "no_such_module" in titles["broken"]
    with pytest.raises(ConfigError, match="the colour 'broken' of no_such_module:thing cannot be loaded"):
        names.find("broken")
