"""Functions of other packages for the same quantities, if installed.

Each gets a copy of the network (BackPACK's hooks stay on what it extends) with its output flattened to (B, D), the form
in which all of them take a squared error.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from importlib.util import find_spec

from torch import Tensor, nn

from lapae_paper.bench.measure import Work

MakePeer = Callable[[nn.Module, Tensor], Work]


def _flat(module: nn.Module) -> nn.Module:
    return nn.Sequential(copy.deepcopy(module), nn.Flatten())


def backpack(extension: str) -> MakePeer:
    """Make a forward and backward pass with one of BackPACK's extensions."""

    def make(module: nn.Module, x: Tensor) -> Work:
        import backpack
        import backpack.extensions

        warnings.filterwarnings("ignore", module="backpack")
        model = backpack.extend(_flat(module))
        loss = backpack.extend(nn.MSELoss(reduction="sum"))
        target = x.flatten(1)

        def work() -> None:
            value = loss(model(x), target)
            with backpack.backpack(getattr(backpack.extensions, extension)()):
                value.backward()
            for p in model.parameters():
                p.grad = None

        return work

    return make


def curvlinops_kfac(module: nn.Module, x: Tensor) -> Work:
    """Compute Kronecker factors from one sampled target per sample."""
    from curvlinops.kfac import KFACLinearOperator

    model = _flat(module)
    batches = [(x, x.flatten(1))]

    def work() -> None:
        operator = KFACLinearOperator(
            model,
            nn.MSELoss(reduction="sum"),
            list(model.parameters()),
            batches,
            check_deterministic=False,
            num_per_example_loss_terms=1,
            num_data=len(x),
        )
        operator.compute_kronecker_factors()

    return work


def laplace_diagonal(module: nn.Module, x: Tensor) -> Work:
    """Compute the exact diagonal by laplace-torch's default backend."""
    from laplace.curvature import CurvlinopsGGN

    model = _flat(module)
    target = x.flatten(1)
    return lambda: CurvlinopsGGN(model, "regression").diag(x, target)


_PEERS: dict[str, tuple[str, MakePeer]] = {
    "backpack mc": ("backpack", backpack("DiagGGNMC")),
    "backpack kfac": ("backpack", backpack("KFAC")),
    "backpack exact": ("backpack", backpack("DiagGGNExact")),
    "curvlinops kfac": ("curvlinops", curvlinops_kfac),
    "laplace-torch exact": ("laplace", laplace_diagonal),
}


def installed_peers() -> dict[str, MakePeer]:
    """Return the peers that can be imported."""
    return {name: make for name, (package, make) in _PEERS.items() if find_spec(package) is not None}
