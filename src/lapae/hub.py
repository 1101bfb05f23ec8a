"""Estimators on the Hugging Face Hub, or in a folder with the same content."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from lapae import __version__
from lapae.errors import ConfigError
from lapae.estimator import LaplacianAutoencoder
from lapae.runs.files import write_whole

CARD = "README.md"
"""The model card."""


def push_to_hub(
    estimator: LaplacianAutoencoder,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    message: str = "Upload a model of lapae",
) -> Any:
    """Upload a fitted estimator, with a model card unless the repository has one.

    Args:
        estimator: the fitted estimator.
        repo_id: owner/name; the repository is created if it does not exist.
        private: whether a new repository is private.
        revision: branch to upload to.
        token: token to sign in with; default: that of `hf auth login`.
        message: message of the commit.

    Returns:
        What `HfApi.upload_folder` returns.
    """
    api = _hub().HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(estimator, Path(folder) / "run")
        api.create_repo(repo_id, private=private, exist_ok=True)
        known = api.file_exists(repo_id, CARD, revision=revision)
        return api.upload_folder(
            repo_id=repo_id,
            folder_path=str(Path(folder) / "run"),
            revision=revision,
            commit_message=message,
            ignore_patterns=[CARD] if known else None,
        )


def save_pretrained(estimator: LaplacianAutoencoder, path: str | Path) -> None:
    """Write the content that `push_to_hub` uploads into a folder: the run and a model card."""
    estimator.save(path)
    write_whole(Path(path) / CARD, card(estimator).encode())


def from_pretrained(name: str | Path, *, revision: str | None = None, token: str | None = None) -> LaplacianAutoencoder:
    """Load an estimator from a folder, or from the Hub. Nothing is unpickled.

    Args:
        name: a folder, or owner/name of a repository.
        revision: branch, tag or commit of the repository.
        token: to sign in with.
    """
    if Path(name).is_dir():
        return LaplacianAutoencoder.load(name)
    return LaplacianAutoencoder.load(_hub().snapshot_download(str(name), revision=revision, token=token))


def card(estimator: LaplacianAutoencoder) -> str:
    """Return the model card of a fitted estimator: what it was trained on, and how to use it."""
    space = estimator.model_.space
    columns = ", ".join(f"`{name}`" for name in space.names or ())
    return f"""---
library_name: lapae
tags: [anomaly-detection, autoencoder, uncertainty, tabular]
---

A Laplacian autoencoder (lapae {__version__}), trained on {space.describe()}{f": {columns}" if columns else ""}.

```python
import lapae.hub

model = lapae.hub.from_pretrained("OWNER/NAME")
model.p_value(X)        # small means unusual
model.explain(X)        # by which values
```
"""


def _hub() -> Any:
    try:
        import huggingface_hub  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError("the Hugging Face Hub needs a package: pip install 'lapae[hub]'") from None
    return huggingface_hub
