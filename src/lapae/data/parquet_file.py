"""A .parquet file as frames of some rows each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lapae.data.bounds import check_file, check_memory
from lapae.errors import DataError
from lapae.space.frames import Frame


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into DataError: pyarrow raises errors of many kinds on damaged files."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except Exception as error:
        raise DataError(f"{path}: not a sound .parquet file ({str(error)[:200]})") from error


class ParquetFile:
    """The schema of a file, and its rows."""

    decimal, delimiter, has_header = ".", ",", True

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow.parquet as parquet  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise DataError(f"{path}: reading .parquet files needs pyarrow: pip install 'lapae[parquet]'") from None
        check_file(path)
        self.path = path
        with sound(path):
            self.file = parquet.ParquetFile(path)
            table = self.file.schema_arrow.empty_table().to_pandas()
        self.first = [str(name) for name in table.columns]
        self.width = len(self.first)
        self.size = self.file.metadata.num_rows

    def frames(self, chunk: int, progress: Callable[[int], None], types: Any = None) -> Iterator[Frame]:
        """Yield rows in order, `chunk` at a time, under column numbers from 0; `types` are those of the file.

        `progress` is called with the number of rows that were read.
        """
        about = self.file.metadata
        largest = max((about.row_group(i).total_byte_size for i in range(about.num_row_groups)), default=0)
        check_memory(self.path, largest, "write it with smaller row groups")
        with sound(self.path):
            for batch in self.file.iter_batches(chunk):
                frame = batch.to_pandas()
                frame.columns = range(len(frame.columns))
                progress(len(frame))  # before it is handed over: whoever has it knows how much has been read
                yield frame.reset_index(drop=True)

    def line_of(self, row: int) -> int:
        return row + 1


def check_same_columns(names: Sequence[str], expected: Sequence[str], path: Path, first: Path) -> None:
    """Raise DataError if the columns of a file differ from those of the first one; their order does not matter."""
    if len(set(names)) < len(names):
        raise DataError(f"{path}: two columns have the same name")
    if set(names) != set(expected):
        lacking, more = sorted(set(expected) - set(names)), sorted(set(names) - set(expected))
        told = [f"lacks {', '.join(lacking[:5])}"] * bool(lacking) + [f"has also {', '.join(more[:5])}"] * bool(more)
        raise DataError(f"{path}: {' and '.join(told)}, compared with {first}: the files must have the same columns")
