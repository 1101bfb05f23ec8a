"""What is kept of a fitted estimator, and shown: folders, ONNX files, pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from sklearn.utils.validation import check_is_fitted

from lapae.estimator.validated import Fitted


class Keeping(Fitted):
    """To save, load, export, report and explore; a part of `LaplacianAutoencoder`."""

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the fitted estimator into a run folder: tensors and plain text, nothing pickled.

        Args:
            path: the folder.
            overwrite: replace an estimator that is there, all at once.
        """
        from lapae.estimator.storage import save_estimator

        check_is_fitted(self)
        save_estimator(self, path, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, network: Any = None, likelihood: Any = None) -> Self:
        """The estimator of a run folder, also of one that `lapae train` wrote.

        Args:
            path: the folder.
            network: modules of one's own, which are not saved: those that it was fitted with.
            likelihood: of one's own, which is not saved either.

        Returns:
            A fitted estimator.
        """
        from lapae.estimator.storage import load_estimator

        return load_estimator(cls, path, network=network, likelihood=likelihood)

    def export(self, path: str | Path) -> None:
        """Write one ONNX graph: raw data in; reconstruction, intervals, deviation, code, score and p-value out.

        onnxruntime and numpy are enough to run it; `lapae.export` says what goes in and comes out.
        """
        from lapae.export import export

        export(self._fitted(), path)

    def report(self, X: Any, y: Any = None, *, path: str | Path = "report.html") -> Path:
        """Write one HTML page about data: what is unusual and why, errors, calibration, the latent map.

        Args:
            X: n data, as in `fit`.
            y: (n,) classes to colour the map by.
            path: of the page, which stands alone.

        Returns:
            The path.
        """
        from lapae.view.pages import report

        return report(self._fitted(), self._validated(X), y, path=path)

    def explore(self, X: Any = None, y: Any = None, **options: Any) -> None:
        """Look at data in the browser, until Ctrl-C.

        Args:
            X: n data, as in `fit`; without them the map shows data that the model generates.
            y: (n,) classes to colour the map by.
            options: `host`, `port` and `open`, see `lapae.view.pages.explore`.
        """
        from lapae.view.pages import explore

        explore(self._fitted(), None if X is None else self._validated(X), y, **options)
