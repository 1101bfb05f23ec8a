"""The folder of a run and its files: tensors, configuration, results, locks."""

from lapae.runs.run import (
    ABOUT,
    CHECKPOINT,
    CONFIG,
    HISTORY,
    METRICS,
    MODEL,
    NEXT,
    POSTERIOR,
    PREVIOUS,
    Run,
    digest,
    read_tensor_file,
    tensor_file,
)
from lapae.runs.texts import plain

__all__ = [
    "ABOUT",
    "CHECKPOINT",
    "CONFIG",
    "HISTORY",
    "METRICS",
    "MODEL",
    "NEXT",
    "POSTERIOR",
    "PREVIOUS",
    "Run",
    "digest",
    "plain",
    "read_tensor_file",
    "tensor_file",
]
