"""Likelihoods p(x | network output): density, mean, variance, support, sampling, and the Hessian that seeds M.

The Hessian is that of the negative log density with respect to the network output, the matrix M at the last layer
(paper, appendix E.4). It is positive semi-definite and does not depend on the data: the exponential families are in
their natural parameter, and Student's t has its expected Hessian.

| likelihood        | output                         | Hessian at the output               |
|-------------------|--------------------------------|-------------------------------------|
| Gaussian(sigma)   | mean                           | 1 / sigma², per feature             |
| StudentT(df, sigma) | mean                         | (df + 1) / (df + 3) / sigma², expected |
| Bernoulli         | one logit per element          | p (1 - p)                           |
| Categorical       | logits, one softmax over dim 1 | diag(π) - π πᵀ per position         |
| Mixed(parts)      | (B, D), a part per span        | one of the above per span           |
"""

from lapae.curvature.likelihoods.base import LIKELIHOODS, Likelihood, Observed, likelihood, register
from lapae.curvature.likelihoods.continuous import Gaussian
from lapae.curvature.likelihoods.discrete import Bernoulli, Categorical
from lapae.curvature.likelihoods.mixed import Mixed
from lapae.curvature.likelihoods.student import StudentT

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "Mixed",
    "Observed",
    "StudentT",
    "likelihood",
    "register",
]
