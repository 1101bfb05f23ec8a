"""A .csv file as frames of some rows each, read by pandas; what pandas would let pass is checked on the way."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lapae.data.bounds import check_file
from lapae.errors import DataError
from lapae.space.frames import MISSING, Frame

DELIMITERS = (",", ";", "\t")
SAMPLE = 2**18
"""Bytes that tell the delimiter, the header and the decimal sign."""
BUFFER = 2**20
MOST_LINE = 2**24
"""Bytes of a row: more would be millions of cells."""
NA = sorted({form for word in MISSING for form in (word, word.upper(), word.capitalize(), word.title())} | {"NaN"})
_COMMA, _POINT = re.compile(r"[+-]?\d+,\d+"), re.compile(r"[+-]?\d*\.\d+")


class CsvFile:
    """The dialect of a file, and its rows."""

    has_header = False
    """Whether the first row names the columns, and is left out of the rows: for the reader to say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = check_file(path).st_size
        with _reading(path), path.open("rb") as file:
            head = file.read(SAMPLE)
            while b"\n" not in head and len(head) <= MOST_LINE and (more := file.read(SAMPLE)):
                head += more
            if len(head) > MOST_LINE and b"\n" not in head[:MOST_LINE]:
                raise DataError(f"{path}, row 1: a row of more than {MOST_LINE:,} bytes")
            # what is cut off in the middle is left aside
            sample = (head if len(head) == self.size else head[: head.rfind(b"\n") + 1]).decode("utf-8-sig")
            first = sample.split("\n", 1)[0]
            self.delimiter = max(DELIMITERS, key=re.sub(r'"[^"]*"', "", first).count)
            rows = csv.reader(io.StringIO(sample, newline=""), delimiter=self.delimiter)
            found = next(((row, rows.line_num) for row in rows if row), None)
            if found is None:
                raise DataError(f"{path}: is empty")
            self.first, self.first_lines = [cell.strip() for cell in found[0]], found[1]
            self.width = len(self.first)
            cells = [cell.strip() for row in rows for cell in row]
        comma = any(_COMMA.fullmatch(cell) for cell in (*cells, *self.first))
        self.decimal = "," if comma and not any(_POINT.fullmatch(cell) for cell in cells) else "."

    def frames(self, chunk: int, progress: Callable[[int], None], types: Any = None) -> Iterator[Frame]:
        """Rows in order, `chunk` at a time, under column numbers from 0.

        Args:
            chunk: rows at a time.
            progress: is called with the number of bytes that were read.
            types: of columns by their number; "str" gives all cells as they are written. By default what they read as.
        """
        import pandas as pd

        marks: Any = NA
        if types is not None:  # cells of text are carried as they are written
            written = range(self.width) if types == "str" else {i for i, kind in types.items() if kind == "written"}
            if written:
                marks = {i: NA for i in range(self.width) if i not in written} or []
            types = "str" if types == "str" else types | dict.fromkeys(written, "str")
        with _reading(self.path), io.BufferedReader(_Watched(self, progress), BUFFER) as file:
            try:
                read: Any = pd.read_csv
                # Before 3.1 the last digit of one number in four is wrong by default; since then this is deprecated.
                inexact = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
                frames = read(
                    file,
                    sep=self.delimiter,
                    decimal=self.decimal,
                    header=None,
                    names=list(range(self.width)),
                    index_col=False,
                    dtype=types,
                    keep_default_na=False,
                    na_values=marks,
                    na_filter=marks != [],
                    skipinitialspace=True,
                    **({"float_precision": "round_trip"} if inexact else {}),
                    low_memory=False,
                    encoding="utf-8-sig",
                    chunksize=chunk,
                )
                yield from (frame for frame in frames if len(frame))
            except pd.errors.EmptyDataError:
                return

    def line_of(self, row: int) -> int:
        """The line that data row `row` (from 0) ends on, from 1; for messages. Blank lines are no rows."""
        with _reading(self.path), self.path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=self.delimiter)
            lines = (reader.line_num for cells in reader if cells)
            return next(islice(lines, row + self.has_header, None), 0)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """What goes wrong in reading a .csv file is a DataError."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as .csv ({error})") from error
    except Exception as error:
        if type(error).__name__ != "ParserError":  # of pandas, which is not imported here
            raise
        raise DataError(f"{path}: cannot be read as .csv ({str(error).strip()})") from error


class _Watched(io.RawIOBase):
    """The bytes of a file on their way to pandas: every row has the same number of cells, and none is endless.

    pandas fills rows that are too short, and takes gigabytes for a row of millions of cells before it complains.
    """

    def __init__(self, of: CsvFile, progress: Callable[[int], None]) -> None:
        super().__init__()
        self.of, self.progress = of, progress
        self.file = of.path.open("rb")
        self.line, self.cells, self.length, self.quoted = 1, 1, 0, False
        if self.file.read(3) != b"\xef\xbb\xbf":
            self.file.seek(0)
        for _ in range(of.first_lines if of.has_header else 0):
            self.file.readline()
            self.line += 1

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        n = self.file.readinto(buffer)  # pyright: ignore[reportAttributeAccessIssue]
        content = bytes(buffer[:n])
        if not self._is_even(content):
            self._look(np.frombuffer(content, np.uint8))
        self.progress(n)
        return n

    def _is_even(self, content: bytes) -> bool:
        """Whether whole rows have the right number of cells in all: then none is short, as pandas refuses long ones."""
        end = content.rfind(b"\n") + 1
        if not end or self.quoted or b'"' in content:
            return False
        n_lines, mark = content.count(b"\n", 0, end), self.of.delimiter.encode()
        if content.count(mark, 0, end) + self.cells - 1 != n_lines * (self.of.width - 1):
            return False
        self.cells, self.length = content.count(mark, end) + 1, len(content) - end
        self.line += n_lines
        return True

    def _look(self, part: np.ndarray) -> None:
        if not len(part):
            self._row(self.cells, self.length, self.line)  # the last, which may have no end
            return
        quotes = np.cumsum(part == ord('"'), dtype=np.int64) + self.quoted
        outside = quotes % 2 == 0
        ends = np.flatnonzero((part == ord("\n")) & outside)
        commas = np.cumsum((part == ord(self.of.delimiter)) & outside)
        lines = np.cumsum(part == ord("\n"))
        visible = np.cumsum((part != ord("\n")) & (part != ord("\r")))
        if len(ends):
            cells = np.diff(commas[ends], prepend=0) + 1
            length = np.diff(visible[ends], prepend=0)
            cells[0] += self.cells - 1
            length[0] += self.length
            wrong = np.flatnonzero((cells != self.of.width) & (length > 0) | (length > MOST_LINE))
            if len(wrong):
                first = wrong[0]
                self._row(int(cells[first]), int(length[first]), self.line + int(lines[ends[first]]) - 1)
            self.cells = int(commas[-1] - commas[ends[-1]]) + 1
            self.length = int(visible[-1] - visible[ends[-1]])
        else:
            self.cells += int(commas[-1])
            self.length += int(visible[-1])
        if self.length > MOST_LINE:
            self._row(self.cells, self.length, self.line + int(lines[-1]))
        self.line += int(lines[-1])
        self.quoted = bool(quotes[-1] % 2)

    def _row(self, cells: int, length: int, line: int) -> None:
        """DataError where a row is not as long as the others."""
        if length > MOST_LINE:
            raise DataError(f"{self.of.path}, row {line}: a row of more than {MOST_LINE:,} bytes")
        if length and cells != self.of.width and not self.quoted:
            raise DataError(f"{self.of.path}, row {line}: {cells} cells, expected {self.of.width}")
