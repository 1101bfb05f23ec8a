"""`Detector`: an exported model that takes rows and returns verdicts with reasons."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lapae_runtime.rows import UNSEEN, Field, InputError, read_rows

AT_ONCE = 256
"""Number of rows that are passed to the graph at a time."""
MOST_COLUMNS = 64
"""Maximum number of columns that are hidden one by one, as in `lapae.score.explain`."""


@dataclass(frozen=True)
class Reason:
    """A column that makes a row unusual.

    Attributes:
        column: its name.
        share: its share of the anomaly score.
        value: its value in the row.
        expected: the value that the network expects there without having seen it.
    """

    column: str
    share: float
    value: Any
    expected: Any


@dataclass(frozen=True)
class Scored:
    """Results of a model for n samples.

    Attributes:
        anomaly_score: (n,) higher is more unusual.
        p_value: (n,) conformal p-value, approximate for rows with missing values.
        outlier: (n,) whether the p-value is at most the false alarm rate.
        reasons: reasons for each sample, the strongest first; empty if none were requested.
    """

    anomaly_score: np.ndarray
    p_value: np.ndarray
    outlier: np.ndarray
    reasons: tuple[tuple[Reason, ...], ...] = ()

    def to_json(self) -> list[dict[str, Any]]:
        """Return one mapping per sample with JSON types; a sample with nothing observed has nulls."""
        out = []
        for i in range(len(self.anomaly_score)):
            nothing = bool(np.isnan(self.p_value[i]))
            one: dict[str, Any] = {
                "anomaly_score": None if nothing else float(self.anomaly_score[i]),
                "p_value": None if nothing else float(self.p_value[i]),
                "outlier": None if nothing else bool(self.outlier[i]),
            }
            if self.reasons:
                one["reasons"] = [asdict(reason) for reason in self.reasons[i]]
            out.append(one)
        return out


@dataclass(frozen=True)
class Detector:
    """An exported model. It may be shared by threads.

    Attributes:
        session: session of onnxruntime.
        fields: columns of its table; empty for images and series.
        shape: shape of a sample.
        hides: whether a column can be hidden to see how much the score falls without it.
        version: version of lapae that exported it.
        digest: first 12 digits of the SHA-256 of its file.
    """

    session: Any
    fields: tuple[Field, ...]
    shape: tuple[int, ...]
    hides: bool
    version: str
    digest: str

    @classmethod
    def load(cls, path: str | Path, *, threads: int = 1) -> Detector:
        """Load a file that `lapae export` wrote.

        Args:
            path: the file.
            threads: number of threads that onnxruntime may use for one call; 0 for all cores.
        """
        try:
            import onnxruntime as runtime  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise ImportError("lapae_runtime needs onnxruntime: pip install onnxruntime") from None
        data = Path(path).read_bytes()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3  # errors only: it warns about every constant that it does not fold
        try:
            session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has an error class for each code, without a common base
            raise InputError(f"{path}: onnxruntime cannot read it ({str(error).splitlines()[0][:200]})") from None
        text = session.get_modelmeta().custom_metadata_map.get("lapae")
        about = json.loads(text) if text else {}
        outputs = {output.name for output in session.get_outputs()}
        if "raw_score" not in outputs:
            had = f"lapae {about['version']}" if about else "another program"
            raise InputError(f"{path}: was written by {had}; export it with lapae 0.3 or later")
        fields = ()
        if about["kind"] == "table":
            names = about["columns"] or [str(i) for i in range(about["shape"][0])]
            kinds = about.get("kinds") or ["number"] * len(names)
            words, formats = about.get("categories", {}), about.get("formats", {})
            unseen = UNSEEN if about.get("unseen") else math.nan
            fields = tuple(
                Field(name, kind, tuple(words.get(name, ())), formats.get(name, ""), unseen)
                for name, kind in zip(names, kinds, strict=True)
            )
        digest = hashlib.sha256(data).hexdigest()[:12]
        return cls(session, fields, tuple(about["shape"]), bool(about["hides"]), about["version"], digest)

    def score(self, rows: Any, *, rate: float = 0.05, reasons: int = 0) -> Scored:
        """Score samples.

        Args:
            rows: for a table: a list of mappings from column names to cells, a mapping from names to columns, a frame
                or an array (n, F) of numbers; for images and series: an array (n, *shape). None and NaN are missing.
            rate: false alarm rate, the share of new normal samples that are called outliers.
            reasons: number of columns to name for each row of a table.
        """
        if not 0 < rate < 1:
            raise InputError(f"rate={rate!r}: expected a number between 0 and 1, such as 0.05")
        if not isinstance(reasons, int | np.integer) or reasons < 0:
            raise InputError(f"reasons={reasons!r}: expected a whole number, at least 0")
        if reasons and not self.fields:
            raise InputError("reasons: only tables have columns to name")
        x = self.codes(rows)
        names = ("anomaly_score", "p_value", "flag", "raw_score", "contribution")
        score, p, flag, raw, parts = self._run(x, *names, rate=rate)
        return Scored(score, p, flag, self._reasons(x, raw, parts, reasons) if reasons else ())

    def codes(self, rows: Any) -> np.ndarray:
        """Return samples as the graph takes them: float32 (n, *shape), NaN where missing."""
        if self.fields:
            most = np.finfo(np.float32).max
            x = read_rows(rows, self.fields).clip(-most, most)
        else:
            x = np.asarray(rows)
            if x.shape[1:] != self.shape or x.dtype.kind not in "biuf":
                raise InputError(
                    f"an array {x.shape} of {x.dtype}: expected numbers (n, {', '.join(map(str, self.shape))})"
                )
        return x.astype(np.float32)

    def _run(self, x: np.ndarray, *names: str, rate: float = 0.05) -> list[np.ndarray]:
        """Return outputs of the graph for samples x (n, *shape)."""
        given = {"rate": np.array(rate, np.float32), "level": np.array(0.9, np.float32)}
        starts = range(0, max(len(x), 1), AT_ONCE)
        parts = [self.session.run(names, {"x": x[start : start + AT_ONCE], **given}) for start in starts if len(x)]
        if not parts:
            wide = ("contribution", "reconstruction")
            return [np.empty((0, *self.shape) if name in wide else 0, np.float32) for name in names]
        return [np.concatenate(columns) for columns in zip(*parts, strict=True)]

    def _reasons(self, x: np.ndarray, raw: np.ndarray, parts: np.ndarray, most: int) -> tuple[tuple[Reason, ...], ...]:
        """Return at most `most` reasons for each of the rows x (n, F).

        Half of an anomaly score, `raw` (n,), is divided among columns by its parts (n, F), the other half by how much
        it falls without them, as in `LaplacianAutoencoder.explain`.
        """
        n, f = x.shape
        eye = np.eye(f, dtype=bool)
        total = parts.sum(1, keepdims=True)
        if self.hides and 1 < f <= MOST_COLUMNS:
            hidden = np.where(eye, np.float32(np.nan), x[:, None]).reshape(-1, f)
            without, expected = self._run(hidden, "raw_score", "reconstruction")
            falls = np.nan_to_num(raw[:, None] - without.reshape(n, f)).clip(0)
            fallen = falls.sum(1, keepdims=True)
            parts = np.where(fallen > 0, (parts + total * falls / fallen.clip(1e-12)) / 2, parts)
            expected = expected.reshape(n, f, f)[:, eye]
        else:
            (expected,) = self._run(x, "reconstruction")
        parts = np.where(np.isnan(x), 0.0, parts)
        share = parts / parts.sum(1, keepdims=True).clip(1e-12)
        order = np.argsort(-share, axis=1, kind="stable")[:, :most]
        return tuple(
            tuple(self._reason(j, share[i, j], x[i, j], expected[i, j]) for j in order[i] if share[i, j] > 0)
            for i in range(n)
        )

    def _reason(self, j: int, share: float, value: float, expected: float) -> Reason:
        field = self.fields[j]
        return Reason(field.name, float(share), field.write(float(value)), field.write(float(expected)))
