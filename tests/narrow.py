"""What a test knows of a value and its type does not say: that it is there, or of which kind it is. Each look is
checked when the test runs, so that what is not so fails there."""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

from lapae.methods import Method
from lapae.methods.laplace import Laplace
from lapae.networks import Autoencoder
from lapae.posterior import DiagonalPrecision

T = TypeVar("T")


def sure(value: T | None) -> T:
    """What was asked for, and so is not None."""
    assert value is not None
    return value


def as_a(kind: type[T], value: object) -> T:
    """The value, which is of this kind."""
    assert isinstance(value, kind), type(value)
    return value


def network_of(method: Method) -> Autoencoder:
    """The network of a method that has one."""
    return as_a(Autoencoder, method.network)


def diagonal_of(method: Method) -> DiagonalPrecision:
    """The precision of a Laplace posterior whose Hessian is a diagonal."""
    return as_a(DiagonalPrecision, as_a(Laplace, method).posterior)


def h_of(method: Method) -> Tensor:
    """The diagonal itself, (P,): a view, which may be written to."""
    return diagonal_of(method).h
