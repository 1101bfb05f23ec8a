"""Types of options that state which values they admit, for the checks of a configuration and for `--help`.

    n_samples: Count = 100
    hessian: Annotated[str, OneOf(HESSIANS)] = "approx"

Whether a value is an integer or a string is checked when a file or a flag is read. `check` checks everything else, and
values set by Python code.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tyro.constructors import PrimitiveConstructorSpec

from lapae.errors import ConfigError
from lapae.registry import Registry


@dataclass(frozen=True)
class Bound:
    """Condition on a value, and its description for messages."""

    holds: Callable[[Any], bool]
    says: str


Count = Annotated[int, Bound(lambda n: n >= 1, "at least 1")]
CodeSize = Annotated[int, Bound(lambda n: 1 <= n <= 65_536, "from 1 to 65,536")]
"""Size of a latent code; a larger one is a mistake, which would fill the memory before any message appears."""
Whole = Annotated[int, Bound(lambda n: n >= 0, "0 or more")]
Positive = Annotated[float, Bound(lambda value: 0 < value < math.inf, "a finite number above 0")]
Share = Annotated[float, Bound(lambda value: 0 < value <= 1, "a number above 0 and at most 1")]
Probability = Annotated[float, Bound(lambda p: 0 < p < 1, "a probability between 0 and 1, neither included")]
Widths = Annotated[tuple[int, ...], Bound(lambda widths: min(widths, default=1) >= 1, "widths of at least 1")]


class OneOf(PrimitiveConstructorSpec[str]):
    """Name of a registry. The help lists the visible names; an unknown one is refused with the nearest."""

    def __init__(self, registry: Registry[Any]) -> None:
        super().__init__(
            nargs=1,
            metavar="",
            instance_from_str=lambda words: words[0],
            is_instance=lambda value: isinstance(value, str),
            str_from_instance=lambda name: [name],
        )
        self.__dict__["registry"] = registry  # the base is frozen

    registry: Registry[Any]

    @property
    def metavar(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Names to show in the help, computed then: which are visible depends on it, and plugins import this module."""
        return "{" + ",".join(self.registry.visible()) + "}"

    @metavar.setter
    def metavar(self, value: str) -> None:
        """Ignore what the base class stores."""


def check(options: Any) -> None:
    """Raise ConfigError if a dataclass of options has a value that the type of its field does not admit."""
    hints = get_type_hints(type(options), include_extras=True)
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if isinstance(value, int) and abs(value) >= 2**63:  # config.toml could not say it
            raise ConfigError(f"{field.name} = {value}: the number is too large")
        expected = misfit(value, hints[field.name])
        if expected is not None:
            shown = list(value) if isinstance(value, tuple) else value
            raise ConfigError(f"{field.name} = {shown!r}: expected {expected}")


def misfit(value: Any, kind: Any) -> str | None:
    """Return what a type expects instead of a value; None if it admits the value."""
    if get_origin(kind) in (Union, types.UnionType):
        expected = [misfit(value, option) for option in get_args(kind) if option is not type(None) or value is None]
        return None if None in expected else " or ".join(filter(None, expected))
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        fits = isinstance(value, tuple | list) and all(misfit(one, item) is None for one in value)
        return None if fits else f"a list of {NAMES[item].split()[-1]}s"
    if get_origin(kind) is Literal:
        return None if value in get_args(kind) else f"one of {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) is Annotated:
        if (expected := misfit(value, kind.__origin__)) is not None:
            return expected
        for condition in kind.__metadata__:
            if isinstance(condition, OneOf):
                condition.registry.find(value)
            elif isinstance(condition, Bound) and not condition.holds(value):
                return condition.says
        return None
    return None if _is_a(value, kind) else NAMES.get(kind, "another type")


NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def _is_a(value: Any, kind: type) -> bool:
    """Return whether a value is of a plain type. An integer is a number, a boolean is not."""
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, {int: Integral, float: Real}.get(kind, kind))
