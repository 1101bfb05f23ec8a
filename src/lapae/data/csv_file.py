"""A .csv file as frames of some rows each, read by pandas, with checks of errors that pandas would ignore.

Cells are separated by commas, semicolons, tabs or bars. The text is UTF-8, UTF-16 with a byte order mark, or else
Windows-1252 (Latin-1), with a warning.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lapae.data.bounds import check_file
from lapae.errors import DataError
from lapae.space.column_kinds import PADDED
from lapae.space.frames import MISSING, Frame

DELIMITERS = (",", ";", "\t", "|")
SAMPLE = 2**18
"""Number of bytes used to find the delimiter, the header and the decimal sign."""
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
DECODED = 2**26
"""Number of bytes of a file that are checked for text that is not UTF-8."""
BUFFER = 2**20
MOST_LINE = 2**24
"""Maximum number of bytes of a row: more would be millions of cells."""
NA = sorted({form for word in MISSING for form in (word, word.upper(), word.capitalize(), word.title())} | {"NaN"})
_COMMA, _POINT = re.compile(r"[+-]?\d+,\d+"), re.compile(r"[+-]?\d*\.\d+")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


class CsvFile:
    """Dialect and rows of a file."""

    has_header = False
    """Whether the first row contains the names of the columns and is not one of the rows; set by the reader."""

    padded: set[int]
    """Columns with codes such as 02139 in the first rows, which are read as text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = check_file(path).st_size
        with _reading(path), path.open("rb") as file:
            head = file.read(SAMPLE)
            while b"\n" not in head and len(head) <= MOST_LINE and (more := file.read(SAMPLE)):
                head += more
            if len(head) > MOST_LINE and b"\n" not in head[:MOST_LINE]:
                raise DataError(f"{path}, row 1: a row of more than {MOST_LINE:,} bytes")
            self.encoding = _encoding(path, head)
            sample = codecs.getincrementaldecoder(self.encoding)().decode(head, len(head) == self.size)
            if len(head) < self.size:  # what is cut off in the middle is left aside
                sample = sample[: sample.rfind("\n") + 1]
            self.indented = re.search(rf"[{re.escape(''.join(DELIMITERS))}\n] +\"", sample) is not None
            if "\n" not in sample and "\r" in sample:
                raise DataError(
                    f"{path}: its lines end with \\r alone, as on an old Mac; save it with \\n line endings"
                )
            first = sample.split("\n", 1)[0]
            self.delimiter = max(DELIMITERS, key=re.sub(r'"[^"]*"', "", first).count)
            rows = csv.reader(io.StringIO(sample, newline=""), delimiter=self.delimiter)
            found = next(((row, rows.line_num) for row in rows if row), None)
            if found is None:
                raise DataError(f"{path}: is empty")
            self.first, self.first_lines = [cell.strip() for cell in found[0]], found[1]
            self.width = len(self.first)
            table = [[cell.strip() for cell in row] for row in rows]
            cells = [cell for row in table for cell in row]
            self.padded = {i for row in table for i, cell in enumerate(row[: self.width]) if PADDED.fullmatch(cell)}
        commas = [cell for cell in (*cells, *self.first) if _COMMA.fullmatch(cell)]
        # 1,234 is a thousand, unless semicolons tell that commas are for decimals
        thousands = self.delimiter != ";" and all(_THOUSANDS.fullmatch(cell) for cell in commas)
        points = any(_POINT.fullmatch(cell) for cell in cells)
        self.decimal = "," if commas and not thousands and not points else "."

    def frames(self, chunk: int, progress: Callable[[int], None], types: Any = None) -> Iterator[Frame]:
        """Yield rows in order, `chunk` at a time, under column numbers from 0.

        Args:
            chunk: rows at a time.
            progress: is called with the number of bytes that were read.
            types: types of columns by their number, "written" for cells as they are written; "str" gives all cells
                so, with the blanks around them. Default what they read as.
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
                    skipinitialspace=types != "str" or self.indented,
                    **({"float_precision": "round_trip"} if inexact else {}),
                    low_memory=False,
                    encoding="utf-8",  # as `_Watched` hands it on
                    chunksize=chunk,
                )
                yield from (frame for frame in frames if len(frame))
            except pd.errors.EmptyDataError:
                return

    def line_of(self, row: int) -> int:
        """Return the line (from 1) on which data row `row` (from 0) ends, for messages. Blank lines are not rows."""
        with _reading(self.path), self.path.open(encoding=self.encoding, newline="") as file:
            reader = csv.reader(file, delimiter=self.delimiter)
            lines = (reader.line_num for cells in reader if cells)
            return next(islice(lines, row + self.has_header, None), 0)


def _encoding(path: Path, head: bytes) -> str:
    """Return the encoding of a file that begins with `head`, with a warning if it is only guessed."""
    if head.startswith(UTF_16):
        return "utf-16"
    if _decodes(path, "utf-8"):
        return "utf-8-sig"
    if b"\0" in head:
        raise DataError(
            f"{path}: cannot be read as .csv: it contains zero bytes, as UTF-16 without a byte order mark does; "
            "save it as UTF-8"
        )
    if not _decodes(path, "cp1252"):
        raise DataError(
            f"{path}: cannot be read as .csv: it is neither UTF-8 nor Windows-1252 (Latin-1); save it as UTF-8"
        )
    warnings.warn(
        f"{path}: not UTF-8, so read as Windows-1252 (Latin-1); if characters look wrong, save it as UTF-8",
        stacklevel=4,
    )
    return "cp1252"


def _decodes(path: Path, encoding: str) -> bool:
    """Return whether the first `DECODED` bytes of a file are text in an encoding."""
    decoder, left = codecs.getincrementaldecoder(encoding)(), DECODED
    with path.open("rb") as file:
        try:
            while left > 0 and (part := file.read(BUFFER)):
                decoder.decode(part)
                left -= len(part)
            decoder.decode(b"", left > 0)
        except UnicodeDecodeError:
            return False
    return True


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of reading a .csv file into DataError."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: cannot be read as .csv ({error}); save it as UTF-8") from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as .csv ({error})") from error
    except Exception as error:
        if type(error).__name__ != "ParserError":  # of pandas, which is not imported here
            raise
        raise DataError(f"{path}: cannot be read as .csv ({str(error).strip()})") from error


class _Recoded:
    """A text file as bytes of UTF-8."""

    def __init__(self, path: Path, encoding: str) -> None:
        self.text, self.left = path.open(encoding=encoding, newline=""), b""

    def readline(self) -> bytes:
        return self.text.readline().encode()

    def readinto(self, buffer: Any) -> int:
        part = self.left or self.text.read(max(1, len(buffer) // 4)).encode()
        n = min(len(part), len(buffer))
        buffer[:n], self.left = part[:n], part[n:]
        return n

    def close(self) -> None:
        self.text.close()


class _Watched(io.RawIOBase):
    """The bytes of a file on their way to pandas: every row has the same number of cells, and none is endless.

    pandas fills rows that are too short, and takes gigabytes for a row of millions of cells before it complains.
    """

    def __init__(self, of: CsvFile, progress: Callable[[int], None]) -> None:
        super().__init__()
        self.of, self.progress = of, progress
        plain = of.encoding.startswith("utf-8")
        self.file: Any = of.path.open("rb") if plain else _Recoded(of.path, of.encoding)
        self.line, self.cells, self.length, self.quoted = 1, 1, 0, False
        if plain and self.file.read(3) != codecs.BOM_UTF8:
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
        n = self.file.readinto(buffer)
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
        """Raise a DataError if a row is not as long as the others."""
        if length > MOST_LINE:
            raise DataError(f"{self.of.path}, row {line}: a row of more than {MOST_LINE:,} bytes")
        if length and cells != self.of.width and not self.quoted:
            hint = "; lines of comments are no rows: delete them" if self.of.first[0].startswith("#") else ""
            raise DataError(f"{self.of.path}, row {line}: {cells} cells, expected {self.of.width}{hint}")
