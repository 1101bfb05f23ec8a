"""Fitted parts of a model as named tensors for a run folder, and back.

A part is a frozen dataclass whose fields are tensors, arrays, numbers, other parts, or None. A field that several parts
share is marked with `IN_COMMON` and saved only once, by its owner. A field that once had another name is marked with
`formerly`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

IN_COMMON = {"in common": True}
"""Metadata of a field that another part owns and saves."""
Part = TypeVar("Part")


def formerly(name: str) -> dict[str, str]:
    """Return metadata of a field that earlier runs have under another name."""
    return {"formerly": name}


def to_tensors(part: Any) -> dict[str, Tensor]:
    """Return the fields of a part by name, those of parts within it as `part.field`."""
    import torch

    out: dict[str, Tensor] = {}
    for own in fields(part):
        value = getattr(part, own.name)
        if value is None or own.metadata == IN_COMMON:
            continue
        if is_dataclass(value):
            out |= {f"{own.name}.{name}": tensor for name, tensor in to_tensors(value).items()}
        elif isinstance(value, np.ndarray):
            out[own.name] = torch.from_numpy(value)
        else:
            # a truth as a number: a flipped bit of a byte that is not 0 would go unnoticed
            out[own.name] = value if isinstance(value, torch.Tensor) else torch.tensor(value + 0)
    return out


def from_tensors(kind: type[Part], saved: Mapping[str, Tensor], **given: Any) -> Part:
    """Restore a part from the tensors of `to_tensors`.

    Args:
        kind: class of the part.
        saved: its fields by name.
        given: fields that are shared with other parts.

    Raises:
        KeyError: a field without a default is missing.
    """
    hints = get_type_hints(kind)
    found = dict(given)
    for own in fields(kind):  # pyright: ignore[reportArgumentType]
        hint = _without_none(hints[own.name])
        if own.name in given:
            continue
        names = (own.name, own.metadata.get("formerly", own.name))
        if is_dataclass(hint):
            inner = under(names[0], saved) or under(names[1], saved)
            if inner or not _is_optional(hints[own.name]):
                shared = {f.name: given[f.name] for f in fields(hint) if f.name in given and f.metadata == IN_COMMON}
                found[own.name] = from_tensors(hint, inner, **shared)  # pyright: ignore[reportArgumentType]
        elif name := next((name for name in names if name in saved), None):
            value = saved[name]
            found[own.name] = value.numpy() if hint is np.ndarray else hint(value) if hint in (bool, int) else value
        elif not _is_optional(hints[own.name]) and own.default is MISSING:
            raise KeyError(own.name)
        if own.name not in found and own.default is MISSING:
            found[own.name] = None
    return kind(**found)


def under(name: str, saved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the saved tensors whose names begin with `name` and a dot, by the rest of their names."""
    return {key.removeprefix(f"{name}."): value for key, value in saved.items() if key.startswith(f"{name}.")}


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType) and type(None) in get_args(hint)


def _without_none(hint: Any) -> Any:
    inner = [arg for arg in get_args(hint) if arg is not type(None)]
    return inner[0] if _is_optional(hint) and len(inner) == 1 else hint
