"""Work in chunks, which are made smaller if a GPU or the host runs out of memory.

Predictions are made sample by sample and the curvature is a sum over samples, so smaller pieces give the same result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SIGNS = ("out of memory", "allocate memory", "alloc_failed", "not enough memory")
"""Parts of the messages of torch's plain RuntimeErrors: from its allocators, cuBLAS and cuDNN."""


class OutOfMemory(MemoryError):
    """Error if even the smallest piece of work does not fit into memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is no memory left."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's, without importing it
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in SIGNS)


def within_memory(attempt: Callable[[int], T], size: int, what: str, advice: str) -> tuple[T, int]:
    """Halve the size of the pieces, with a warning, as long as memory runs out.

    Args:
        attempt: does all the work in pieces of a given size, from scratch every time.
        size: initial size of the pieces.
        what: name of the work, for messages.
        advice: what to do if the smallest piece does not fit.

    Returns:
        `attempt(size)`, and the size that worked.
    """
    while True:
        try:
            return attempt(size), size
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error) or isinstance(error, OutOfMemory) or _capturing():
                raise
            if size <= 1:
                reason = " ".join(str(error).split())[:200]
                raise OutOfMemory(f"out of memory in {what}, one at a time too: try {advice} ({reason})") from error
        # Out of the clause above: the error's traceback no longer holds the tensors that did not fit.
        _give_back()
        warnings.warn(f"out of memory in {what}, {size} at a time; trying {size // 2}", stacklevel=2)
        size //= 2


def _capturing() -> bool:
    """Return whether a CUDA graph is being recorded: nothing can be tried again then; the step itself is, eagerly."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def _give_back() -> None:
    """Release cached blocks of a GPU, because a smaller piece may need them in another shape."""
    import gc

    import torch

    gc.collect(1)  # what just failed is young
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
