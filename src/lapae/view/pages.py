"""Report on, or explore, a trained model in one call each.

report(model, X)                 # writes report.html, returns its path
explore(model, X)                # serves until Ctrl-C
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from lapae.model import Model

__all__ = ["explore", "report"]


def report(model: Model, X: Any, y: Any = None, *, path: str | Path = "report.html", **sizes: Any) -> Path:
    """Write one page about a model and samples: what is unusual and why, errors, calibration, the latent map.

    Args:
        model: a trained model.
        X: samples (n, *shape) in the user's units: an array, a tensor or a frame.
        y: (n,) classes to colour the map by, if any.
        path: the HTML file to write. It needs no other file.
        sizes: fields of `lapae.view.sizes.ReportSizes`.
    """
    from lapae.view.named_splits import NamedSplits
    from lapae.view.report.page import report_html, write_page
    from lapae.view.sizes import ReportSizes

    write_page(Path(path), report_html(model, NamedSplits.given(_samples(model, X), y), ReportSizes(**sizes)))
    return Path(path)


def _samples(model: Model, X: Any) -> np.ndarray:
    """Return samples as the pages take them: numbers, or with features the images themselves."""
    if model.space.features is None:
        return model.space.code(X)
    return np.asarray(X.detach().cpu() if hasattr(X, "detach") else X)


def explore(
    model: Model, X: Any = None, y: Any = None, *, host: str = "127.0.0.1", port: int = 8765, open: bool = True
) -> None:
    """Serve a page about a model and samples on this machine, until Ctrl-C.

    Args:
        model: a trained model.
        X: samples (n, *shape) in the user's units; without them the map shows samples that the model generates.
        y: (n,) classes to colour the map by, if any.
        host: address to listen at; one that other machines reach puts a secret into the page's address.
        port: where to listen; 0 is any free port.
        open: whether to open the page in the browser.
    """
    from lapae.view.explore import serve
    from lapae.view.named_splits import NamedSplits

    reason = None if X is not None else "none were given"
    splits = NamedSplits() if X is None else NamedSplits.given(_samples(model, X), y)
    server = serve.prepare(model, splits, model.space.name, host=host, port=port, no_data=reason)
    serve.serve(server, open=open)
