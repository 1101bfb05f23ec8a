"""Requests are checked before anything is done with them: every mistake is a `BadRequest` that says what came."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import numpy as np

from lapae.errors import LapaeError

FARTHEST = 1e6
"""Largest coordinate, and largest value in standard deviations of the data, that is accepted."""


class BadRequest(LapaeError):
    """A request that cannot be answered, with the status to answer it with."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.status = status


def parse(body: bytes, keys: set[str]) -> dict[str, Any]:
    """Parse a JSON object with exactly these keys."""
    try:
        found = json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"not JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise BadRequest(f"expected a JSON object, got {kind(found)}")
    if set(found) != keys:
        raise BadRequest(f"expected the keys {', '.join(sorted(keys))}, got {', '.join(sorted(found))[:200] or 'none'}")
    return found


def whole(value: Any, name: str, n: int) -> int:
    """Check a whole number from 0 to n - 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < n:
        raise BadRequest(f"{name}: expected a whole number from 0 to {n - 1}, got {told(value)}")
    return value


def number(value: Any, name: str, most: float = FARTHEST) -> float:
    """Check a number from -most to most."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name}: expected a number, got {told(value)}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not -most <= found <= most:
        raise BadRequest(f"{name}: expected a number from {-most:g} to {most:g}, got {told(value)}")
    return found


def sequence(value: Any, name: str, n: int) -> list[Any]:
    """Check a list of n elements."""
    if not isinstance(value, list) or len(value) != n:
        came = f"a list of {len(value)}" if isinstance(value, list) else kind(value)
        raise BadRequest(f"{name}: expected a list of {n}, got {came}")
    return value


def axes(value: Any, n: int) -> tuple[int, int]:
    """Check two different axes out of n."""
    a, b = (whole(axis, "axes", n) for axis in sequence(value, "axes", 2))
    if a == b:
        raise BadRequest(f"axes: expected two different ones, got {a} twice")
    return a, b


def code(value: Any, size: int) -> np.ndarray | None:
    """Check a code (K,), or None."""
    return None if value is None else np.array([number(v, "anchor") for v in sequence(value, "anchor", size)])


def one_of(value: Any, name: str, known: Sequence[str]) -> str:
    """Check one of some words."""
    if not isinstance(value, str) or value not in known:
        raise BadRequest(f"{name}: expected one of {', '.join(known) or 'none'}, got {told(value)}")
    return value


def end(value: Any, n: int, size: int) -> dict[str, Any]:
    """Check an end of a path: {"point": one of n dots}, {"at": two coordinates} or {"code": a code of that size}."""
    if not isinstance(value, dict) or len(value) != 1:
        came = kind(value) if not isinstance(value, dict) else f"an object of {len(value)}"
        raise BadRequest(f"ends: expected an object of one key, point, at or code, got {came}")
    ((key, given),) = value.items()
    one_of(key, "ends", ("point", "at", "code"))
    if key == "point":
        return {"point": whole(given, "ends", n)}
    found = [number(v, "ends") for v in sequence(given, "ends", 2 if key == "at" else size)]
    return {key: tuple(found) if key == "at" else np.array(found)}


def sample(value: Any, shape: tuple[int, ...], *, most: float | None) -> np.ndarray:
    """Check a sample (*shape) in storage units, NaN for null; images have values from 0 to `most`."""
    flat = sequence(value, "values", int(np.prod(shape)))
    found = [math.nan if v is None else number(v, "values", math.inf) for v in flat]
    array = np.array(found, np.float64)
    if np.isinf(array).any():
        raise BadRequest("values: expected finite numbers")
    if most is not None and ((array < 0) | (array > most)).any():
        low, high = np.nanmin(array), np.nanmax(array)
        raise BadRequest(f"values: expected numbers from 0 to {most:g}, got {low:g} to {high:g}")
    return array.reshape(shape)


def told(value: Any) -> str:
    """Write a value for a message, shortened."""
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except ValueError:  # a whole number of thousands of digits
        text = "a very large number"
    return repr(text[:40]) if isinstance(value, str) else text[:40]


def kind(value: Any) -> str:
    """Name the type of a JSON value."""
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
