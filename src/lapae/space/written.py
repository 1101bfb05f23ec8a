"""Numbers and times as people write them in cells: $32,458, €1.1M, 12.5%, 170cm, 1.234,50, 13:44:18.

The format of a column's numbers is stored as a picture, as in spreadsheets, and new cells are read with it:

| cells                      | picture             | number          |
|----------------------------|---------------------|-----------------|
| $32,458                    | $#,##0              | 32458           |
| € 8.54                     | € 0.00              | 8.54            |
| 68,641.00                  | #,##0.00            | 68641           |
| 1.234,5                    | #.##0,0             | 1234.5          |
| €1.1M, €650K               | €0.0[KMB]           | 1100000, 650000 |
| 12.5%                      | 0.0%                | 12.5            |
| 170cm, 65 cm               | 0cm                 | 170, 65         |
| 13:44:18                   | hh:mm:ss            | 49458 (seconds) |
| 1:44 PM                    | hh:mm AM/PM         | 49440           |
| 31:10 (some of 24 h on)    | [h]:mm              | 112200          |

A cell without the currency, the unit or the separators of its picture can be read, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

CURRENCIES = "US$|R$|C$|A$|$|€|£|¥|₹|₽|₩|USD|EUR|GBP|JPY|CHF|INR|CAD|AUD|CNY|Rs.|Rs"
SCALES = {"K": 1e3, "k": 1e3, "M": 1e6, "m": 1e6, "B": 1e9, "b": 1e9, "": 1.0}
SHORT_UNITS = frozenset("mgshltLWVANJFC%°\"'‰²³€$£¥₹")
"""Units of one character; others have at least two letters, so that 7x is not a number."""
DAY_SECONDS = 86_400
_MONEY = "|".join(re.escape(one) for one in CURRENCIES.split("|"))
_CELL = re.compile(
    rf"(?P<open>\()?(?P<sign>[-+−]?)\s*(?P<prefix>{_MONEY})?(?P<gap>\s*)(?P<minus>[-−]?)"
    r"(?P<body>\d[\d.,'’\u00a0\u202f ]*|[.,]\d+)"
    r"(?P<tail>[^\d,:()][^\d:()]{0,11})?(?P<close>\))?"
)
_PICTURE = re.compile(
    r"(?P<prefix>[^#0]*)(#(?P<thousands>.)##)?0((?P<decimal>[.,])(?P<places>0+))?(?P<scaled>\[KMB\])?(?P<suffix>[^#0]*)"
)
_TIME = re.compile(r"(\d{1,4}):([0-5]\d)(?::([0-5]\d)(\.\d+)?)?\s*([AaPp])?(?:\.?[Mm]\.?)?")
_SPACES = "'’\u00a0\u202f "


@dataclass(frozen=True)
class Picture:
    """How the numbers of a column are written."""

    prefix: str = ""
    thousands: str = ""
    decimal: str = "."
    places: int = 0
    scaled: bool = False
    """Whether K, M and B stand for thousands, millions and billions."""
    suffix: str = ""

    def __str__(self) -> str:
        head = f"#{self.thousands}##0" if self.thousands else "0"
        tail = self.decimal + "0" * self.places if self.places else ""
        return f"{self.prefix}{head}{tail}{'[KMB]' if self.scaled else ''}{self.suffix}"

    @classmethod
    def read(cls, text: str) -> Picture:
        """Read what `str` writes."""
        found = _PICTURE.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no picture of a number such as $#,##0.00")
        thousands, decimal = found["thousands"] or "", found["decimal"]
        decimal = decimal or ("," if thousands == "." else ".")
        scaled = found["scaled"] is not None
        return cls(found["prefix"], thousands, decimal, len(found["places"] or ""), scaled, found["suffix"])

    @property
    def sure(self) -> bool:
        """Whether only numbers are written like this: a single unit or K may be part of a name (4WD, 10K)."""
        money = bool(self.prefix) or self.suffix.strip() in {"%", "‰", *CURRENCIES.split("|")}
        return money or not (self.suffix or self.scaled)

    def parse(self, words: Iterable[str | None]) -> np.ndarray:
        """Return the numbers (n,) in words; NaN for those that are missing or have another format."""
        memory: dict[str | None, float] = {None: np.nan}
        out = [memory[w] if w in memory else memory.setdefault(w, self._one(_CELL.fullmatch(w or ""))) for w in words]
        return np.array(out, np.float64)

    def _one(self, cell: re.Match[str] | None) -> float:
        if (
            cell is None
            or bool(cell["open"]) != bool(cell["close"])
            or (cell["prefix"] or "") not in ("", self.prefix.rstrip())
        ):
            return np.nan
        scale, suffix = _tail(cell["tail"], self.scaled)
        body = cell["body"].strip()
        if _folded(suffix) not in ("", _folded(self.suffix)) or not _body(self.thousands, self.decimal).fullmatch(body):
            return np.nan
        for mark in self.thousands if self.thousands not in _SPACES else _SPACES:
            body = body.replace(mark, "")
        negative = bool(cell["open"]) != (cell["sign"] in ("-", "−") or bool(cell["minus"]))
        value = float(body.replace(self.decimal, ".")) * SCALES[scale]
        return -value if negative else value

    def write(self, value: float) -> str:
        """Return a number in the format of the column."""
        size, letter = abs(value), ""
        if self.scaled:
            letter = next((name for name, least in (("B", 1e9), ("M", 1e6), ("K", 1e3)) if size >= least), "")
            size /= SCALES[letter]
        digits = f"{size:,.{self.places}f}".replace(",", "\0").replace(".", self.decimal)
        minus = "-" if value < 0 and digits.strip(f"0\0{self.decimal}") else ""
        return f"{minus}{self.prefix}{digits.replace(chr(0), self.thousands)}{letter}{self.suffix}"


def find_picture(words: Sequence[str]) -> Picture | None:
    """Return the picture of most of the different cells; None if they are not numbers.

    The currency, the unit and the separators of most cells are those of the column.
    """
    cells = [cell for cell in map(_CELL.fullmatch, words) if cell is not None]
    if 2 * len(cells) < len(words) or not cells:
        return None
    prefix = _usual(cell["prefix"] or "" for cell in cells)
    gaps = [cell["gap"][:1] for cell in cells if cell["prefix"] == prefix]
    prefix += _usual(gaps) if prefix and 2 * gaps.count("") < len(gaps) else ""
    tails = [(cell["tail"] or "").strip() for cell in cells]
    lettered = [tail[:1] in SCALES and tail[:1] != "" and _is_scale(tail) for tail in tails]
    # a small m is a metre, unless it is said of money
    scaled = any(lettered) and (bool(prefix) or any(tail[:1] in "KMB" for tail in tails if tail))
    if scaled and not prefix and len({tail for tail in tails if tail}) == 1 and tails[0] not in ("K", "M", "B", "k"):
        scaled = False
    suffix = _usual(_tail(cell["tail"], scaled)[1] for cell in cells)
    if suffix and len(suffix.strip()) < 2 and suffix.strip() not in SHORT_UNITS:
        return None
    spaced = next((cell["tail"] for cell in cells if cell["tail"] and cell["tail"].strip() == suffix), suffix)
    suffix = f" {suffix}" if suffix and spaced.startswith(" ") else suffix
    if any(mark in prefix + suffix for mark in "#0"):
        return None
    bodies = [cell["body"].strip() for cell in cells]
    spaced_out = any(" " in cell["body"].rstrip() for cell in cells)
    if suffix and not suffix.startswith(" ") and all(cell["body"].endswith(" ") for cell in cells if cell["tail"]):
        suffix = f" {suffix}"
    thousands, decimal = _separators(bodies, spaced_out)
    places = max((len(body.rpartition(decimal)[2]) for body in bodies if decimal in body), default=0)
    return Picture(prefix, thousands, decimal, min(places, 12), scaled, suffix)


def find_time(words: Sequence[str]) -> str | None:
    """Return the picture of most of the different cells if they are times of day or durations; else None."""
    cells = [cell for cell in map(_TIME.fullmatch, words) if cell is not None]
    if 2 * len(cells) < len(words) or not cells:
        return None
    seconds = ":ss" if any(cell[3] for cell in cells) else ""
    if any(cell[5] for cell in cells):
        return f"hh:mm{seconds} AM/PM"
    return f"[h]:mm{seconds}" if any(int(cell[1]) >= 24 for cell in cells) else f"hh:mm{seconds}"


def is_time(picture: str) -> bool:
    """Return whether a picture is one of times instead of numbers."""
    return picture.startswith(("hh:", "[h]:"))


def parse_written(words: Iterable[str | None], picture: str) -> np.ndarray:
    """Return numbers (n,) of words by a picture, times in seconds; NaN for all other words."""
    if not is_time(picture):
        return Picture.read(picture).parse(words)
    return np.array([np.nan if word is None else _seconds(_TIME.fullmatch(word)) for word in words], np.float64)


def write_written(values: Iterable[float], picture: str) -> list[str]:
    """Return numbers as text by a picture; "" for NaN."""
    if not is_time(picture):
        known = Picture.read(picture)
        return ["" if np.isnan(value) else known.write(value) for value in values]
    return ["" if np.isnan(value) else _time(value, picture) for value in values]


def _time(value: float, picture: str) -> str:
    most = DAY_SECONDS - 1 if picture.startswith("hh") else 10**9
    unit = 1 if ":ss" in picture else 60
    second = int(min(max(round(value / unit) * unit, 0), most))
    hour, minute, second = second // 3600, second // 60 % 60, second % 60
    half = ""
    if picture.endswith("AM/PM"):
        half, hour = " PM" if hour >= 12 else " AM", (hour - 1) % 12 + 1
    clock = f"{hour}:{minute:02d}" if half or picture.startswith("[") else f"{hour:02d}:{minute:02d}"
    return clock + (f":{second:02d}" if unit == 1 else "") + half


def _seconds(cell: re.Match[str] | None) -> float:
    if cell is None:
        return np.nan
    hour, minute, second = int(cell[1]), int(cell[2]), int(cell[3] or 0) + float(cell[4] or 0)
    if cell[5]:
        if not 1 <= hour <= 12:
            return np.nan
        hour = hour % 12 + (12 if cell[5] in "pP" else 0)
    return 3600.0 * hour + 60 * minute + second


def _usual(words: Iterable[str]) -> str:
    """Return the word that occurs most often, "" only if there is no other."""
    counts = Counter(word for word in words if word)
    return max(counts, key=lambda word: (counts[word], word)) if counts else ""


def _is_scale(tail: str) -> bool:
    return len(tail) == 1 or not tail[1].isalpha()


def _tail(tail: str | None, scaled: bool) -> tuple[str, str]:
    """Split what follows the digits into the letter of a scale, if there may be one, and the unit."""
    tail = (tail or "").strip()
    if scaled and tail[:1] in SCALES and tail and _is_scale(tail):
        return tail[0], tail[1:].strip()
    return "", tail


def _folded(unit: str) -> str:
    """Return a normalised unit for comparisons: 1 day and 2 Days have the same."""
    unit = unit.strip().rstrip(".").lower()
    return unit[:-1] if len(unit) > 2 and unit.endswith("s") else unit


def _separators(bodies: Sequence[str], spaced: bool) -> tuple[str, str]:
    """Return the separators of thousands ("" for none) and of decimals in digits."""
    mark = next((mark for mark in _SPACES if any(mark in body for body in bodies)), "")
    mark = mark if spaced or mark != " " else ""
    commas, points = [b for b in bodies if "," in b], [b for b in bodies if "." in b]
    both = [body for body in commas if "." in body]
    if both:
        first = both[0]
        return (",", ".") if first.rindex(".") > first.rindex(",") else (".", ",")
    if commas:
        grouped = all(re.fullmatch(r"[1-9]\d{0,2}(,\d{2,3})*,\d{3}", body) for body in commas)
        return (",", ".") if grouped or points else (mark, ",")
    return (".", ",") if any(body.count(".") > 1 for body in points) else (mark, ".")


def _body(thousands: str, decimal: str) -> re.Pattern[str]:
    mark, point = re.escape(thousands), re.escape(decimal)
    if thousands and thousands in _SPACES:
        mark = f"[{_SPACES}]"
    grouped = rf"[1-9]\d{{0,2}}(?:{mark}\d{{2,3}})*{mark}\d{{3}}(?:{point}\d*)?|" if thousands else ""
    return re.compile(rf"{grouped}\d+(?:{point}\d*)?|{point}\d+")
