"""Configuration: frozen dataclasses whose field docstrings are the help of the command line.

A configuration file has a table for each section (`[data]`, `[model]`, `[method]`, `[train]`); what it leaves out keeps
its default. `lapae.runs.toml` reads and writes it. Nothing heavy is imported here: `--help` reads these files.
"""

from lapae.config.methods import METHODS, MethodConfig, MethodOptions
from lapae.config.names import ACTIVATIONS, HESSIANS, LIKELIHOODS, NETWORKS, Hessian
from lapae.config.sections import Config, DataConfig, ModelConfig, TrainConfig
from lapae.registry import Entry, Registry

__all__ = [
    "ACTIVATIONS",
    "HESSIANS",
    "LIKELIHOODS",
    "METHODS",
    "NETWORKS",
    "Config",
    "DataConfig",
    "Entry",
    "Hessian",
    "MethodConfig",
    "MethodOptions",
    "ModelConfig",
    "Registry",
    "TrainConfig",
]
