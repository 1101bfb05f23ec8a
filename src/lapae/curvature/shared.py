"""Parameters that are used in several places, or in ways that no rule covers, as one layer with summed gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lapae.curvature.rules.base import Leaf, Params, Rule, hollow


@dataclass(frozen=True)
class Place:
    """One use of some of the parameters."""

    keys: dict[str, str]
    """Keys of the parameters in the layer of all places, by those that they have in this place."""
    shape: tuple[int, ...]
    """(*out) of this place; of a copy the shape of the parameter."""
    leaf: Leaf | None = None
    """The layer at work; None for a copy per sample, which is its own output."""


class Shared(Rule):
    """Gradients of parameters that are used in several places: one layer, whose output is the concatenation of theirs.

    The output is (B, F), with F the sum over the places. Inputs of the places are what the layer saves.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places

    @property
    def is_weight(self) -> bool:
        """Whether there is only one parameter, which is the weight of a linear map or of a convolution in every
        place."""
        return all(place.leaf is not None and place.keys == {"weight": "weight"} for place in self.places)

    def leaves(self, at: Leaf) -> list[Leaf]:
        """Return the layers of the places that are not copies."""
        pairs = zip(self.places, at.saved, strict=True)
        return [replace(p.leaf, x=x, y=p.leaf.y[: len(x)]) for p, x in pairs if p.leaf is not None]

    def split(self, at: Leaf, v: Tensor) -> list[Tensor]:
        """Return the rows v (R, B, F) at each place, (R, B, *out)."""
        parts = v.split([torch.Size(place.shape).numel() for place in self.places], 2)
        return [part.reshape(*v.shape[:2], *place.shape) for part, place in zip(parts, self.places, strict=True)]

    def gradients(self, at: Leaf, v: Tensor) -> Params:
        """Return the sums over the places; zero for a parameter that has none."""
        total: Params = {}
        for place, x, rows in zip(self.places, at.saved, self.split(at, v), strict=True):
            if place.leaf is None:
                found = dict.fromkeys(place.keys, rows)
            else:
                leaf = replace(place.leaf, x=x, y=place.leaf.y[: len(x)])
                found = leaf.rule.gradients(leaf, rows)
            for own, key in place.keys.items():
                g = found[own].reshape(*v.shape[:2], *at.params[key].shape)
                total[key] = total[key] + g if key in total else g
        for key in at.trainable:
            if key not in total:
                total[key] = v.new_zeros(()).expand(*v.shape[:2], *at.params[key].shape)
        return total


def shared(name: str, names: dict[str, str], params: Params, places: Sequence[Place], like: Tensor) -> Leaf:
    """Put the uses of some parameters into one layer.

    `names` and `params` are their full names and values by their keys in the layer; `like` is a tensor (B, …) of the
    dtype and device of the outputs.
    """
    n_features = sum(torch.Size(place.shape).numel() for place in places)
    y = hollow(like.new_empty(1)).expand(len(like), n_features)
    saved: tuple[Any, ...] = tuple(None if place.leaf is None else place.leaf.x for place in places)
    return Leaf(name, None, Shared(places), params, tuple(names), y, y, saved, names)
