"""`lapae.fit_mapper`: one model for each customer, machine or shop, on the engine that holds their rows.

The rows of a key arrive as a pandas frame, and one row of a table is returned: where the run is, or why there is none.
A key that fails does not stop the others. Rows are sorted first and one thread is used, so that the run of a key has
the same bytes in whatever order an engine delivers the rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from lapae.errors import ConfigError, DataError, LapaeError, did_you_mean
from lapae.estimator import LaplacianAutoencoder
from lapae.networks.threads import one_thread

try:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
except ImportError:
    raise ImportError("lapae.fit_mapper needs pyarrow: pip install 'lapae[parquet]'") from None

NO_KEY = "__HIVE_DEFAULT_PARTITION__"
"""Name of a missing key in the names of folders, as Spark, Dask and DuckDB write it."""
TOLD = ("run", "rows", "seconds", "error", "warnings")


def fit_mapper(out: str | Path, key: str | Sequence[str], **options: Any) -> FitMapper:
    """Make a function that fits a model to the rows of each key and saves it in a folder of its own.

    Args:
        out: folder of the runs; that of a key is out/KEY=VALUE. All workers see it.
        key: column that says which rows belong together, or several columns; they are not learned.
        options: options of `LaplacianAutoencoder`.

    Returns:
        A `FitMapper`: call it with a pandas frame; `schema` is that of the table that it returns.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys or not all(isinstance(name, str) for name in keys) or {*keys} & {*TOLD}:
        raise ConfigError(f"key = {key!r}: expected names of columns, other than {', '.join(TOLD)}")
    known = LaplacianAutoencoder().get_params()
    for name in options:
        if name not in known:
            raise ConfigError(f"LaplacianAutoencoder has no option {name!r}{did_you_mean(name, known)}")
    return FitMapper(Path(out).expanduser().absolute(), keys, {"random_state": 0, "device": "cpu", **options})


@dataclass(frozen=True)
class FitMapper:
    """From a frame with the rows of some keys to a frame with one row for each; made by `lapae.fit_mapper`.

    Attributes:
        out: folder of the runs.
        keys: columns that say which rows belong together.
        options: options of the estimator.
        schema: the columns of the table (pyarrow): the keys as text; `run`, its folder, null if there is none; `rows`;
            `seconds`; `error`, why there is no run; `warnings` of the fit.
    """

    out: Path
    keys: tuple[str, ...]
    options: Mapping[str, Any]
    schema: Any = field(init=False, compare=False)

    def __post_init__(self) -> None:
        types = {"rows": pa.int64(), "seconds": pa.float64()}
        names = (*self.keys, *TOLD)
        object.__setattr__(self, "schema", pa.schema([pa.field(name, types.get(name, pa.string())) for name in names]))

    def __call__(self, *frames: Any) -> Any:
        """Fit the keys of a frame, as Spark's `applyInPandas` hands it over.

        Spark inspects the arguments: with a named one, it would assume that the function takes the key as well.
        """
        return self.frame(frames[-1])

    def frame(self, frame: Any) -> Any:
        """Fit the keys of a pandas frame that has all rows of each: Dask's partitions and Ray's groups."""
        import pandas as pd

        lacking = [name for name in self.keys if name not in frame.columns]
        if lacking:
            raise DataError(
                f"X: no column {', '.join(map(repr, lacking))}; it has {', '.join(map(str, frame.columns))}"
            )
        found = [self._fit(key, rows) for key, rows in frame.groupby([*self.keys], dropna=False, observed=True)]
        return self.empty_frame if not found else pd.DataFrame(found).astype(self.empty_frame.dtypes)

    @property
    def empty_frame(self) -> Any:
        """Return a pandas frame without rows, with the columns and types of the table: what Dask calls `meta`."""
        import pandas as pd

        types = {pa.string(): pd.StringDtype(), pa.int64(): pd.Int64Dtype()}
        return self.schema.empty_table().to_pandas(types_mapper=types.get)

    def run_of(self, *key: Any) -> Path:
        """Return the run folder of a key."""
        return self.out.joinpath(
            *(f"{quote(name, safe='')}={_folder(value)}" for name, value in zip(self.keys, key, strict=True))
        )

    def _fit(self, key: tuple[Any, ...], rows: Any) -> dict[str, Any]:
        from time import monotonic

        began = monotonic()
        place, error = self.run_of(*key), None
        with warnings.catch_warnings(record=True) as told, one_thread():
            warnings.simplefilter("always")
            try:
                model = LaplacianAutoencoder(**self.options)
                model.fit(in_order(as_read(rows.drop(columns=[*self.keys]))))
                model.save(place, overwrite=True)
            except Exception as found:  # whatever is wrong with one key, the others go on
                error = str(found) if isinstance(found, LapaeError) else f"{type(found).__name__}: {found}"
        texts = dict.fromkeys(str(warning.message) for warning in told)
        return {
            **{name: None if _is_missing(value) else str(value) for name, value in zip(self.keys, key, strict=True)},
            "run": str(place) if error is None else None,
            "rows": len(rows),
            "seconds": monotonic() - began,
            "error": error,
            "warnings": "\n".join(texts) or None,
        }


def as_read(rows: Any) -> Any:
    """Return a frame with the types that pandas uses when it reads a file, which a run stores: engines pass Arrow's own
    types (Ray), text of other types (Dask, Spark) and times in another unit (Spark)."""
    import pandas as pd

    out = {}
    for name in rows.columns:
        values = rows[name]
        if values.dtype == object or isinstance(values.dtype, (pd.ArrowDtype, pd.StringDtype)):
            with suppress(pa.ArrowException):  # cells of several types stay as they are
                table = pa.table({"": pa.array(values, from_pandas=True)})
                values = table.to_pandas()[""].set_axis(rows.index)
        if values.dtype.kind == "M":
            values = values.dt.as_unit("us")
        out[name] = values
    return rows.assign(**out)


def in_order(rows: Any) -> Any:
    """Return the rows of a frame in an order that depends only on their values."""
    from pandas import util

    columns = rows[sorted(rows.columns, key=str)]
    plain = columns.astype(dict.fromkeys(columns.select_dtypes("category"), object))
    hashed: Any = util.hash_pandas_object  # pyright: ignore[reportAttributeAccessIssue]
    keys = hashed(plain, index=False)
    return rows.iloc[np.argsort(keys.to_numpy(), kind="stable")].reset_index(drop=True)


def _folder(value: Any) -> str:
    return NO_KEY if _is_missing(value) else quote(str(value), safe=" ") or '""'


def _is_missing(value: Any) -> bool:
    return value is None or value != value
