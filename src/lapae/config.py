"""Configuration: frozen dataclasses whose field docstrings are the help of the command line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MethodConfig:
    """How the autoencoder is trained, and what makes it stochastic."""

    method: str = "online"
    """online, posthoc, ae, ae-var, vae, dropout, ensemble or bbb."""
    hessian: str = "approx"
    """Curvature of the online and post-hoc posteriors: approx, exact, mixed, mc, bottleneck; also block, kfac."""
    update: str = "laplacian"
    """Update of the online precision: laplacian, redux, van or nng (paper, appendix C)."""
    forgetting: float | None = None
    """The α of the online update; the learning rate where not given."""
    prior_precision: float = 1.0
    """Precision of the Gaussian prior over the weights."""
    initial_precision: str = "prior"
    """H_0 of the online posterior: "prior", or "data" for the number of training data."""
    hessian_every: int = 1
    """Refresh the online curvature every so many steps."""
    samples_per_step: int = 1
    """Networks drawn in an online training step."""
    temperature: float = 1.0
    """Divides the posterior precision: above 1 is a wider posterior."""
    optimize_prior: str = "scalar"
    """Post-hoc prior precision by marginal likelihood: scalar, layer (one a layer) or none."""
    pretrained: str | None = None
    """Run folder of a trained autoencoder to start the post-hoc fit from."""
    kl_weight: float = 0.001
    """Weight of the KL term of the vae."""
    learned_variance: bool = True
    """Whether the vae learns the variance of its output (False: constant)."""
    dropout: float = 0.2
    """Dropout probability of the dropout method."""
    members: int = 5
    """Members of the ensemble."""
