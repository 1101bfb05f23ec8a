"""Choice of the device: by its name in the options, or one GPU for each process of a job."""

from __future__ import annotations

from lapae.errors import ConfigError
from lapae.train.torchrun import job_size, local_rank, local_size


def choose_device(name: str) -> str:
    """Return "cpu" or "cuda" for a name of the options; auto is cuda if there is one.

    Asking for cuda on a machine without it raises ConfigError.
    """
    import torch

    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device = cuda: there is no CUDA device that torch can use here; try auto or cpu")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def own_device(name: str) -> str:
    """Return the device of this process: with torchrun, each process has a GPU of its own (see `choose_device`)."""
    import torch

    device = choose_device(name)
    if device == "cpu" or job_size() == 1:
        return device
    if local_size() > torch.cuda.device_count():
        counts = f"{local_size()} processes, but {torch.cuda.device_count()} GPUs here"
        raise ConfigError(f"{counts}: one GPU per process")
    return f"cuda:{local_rank()}"
