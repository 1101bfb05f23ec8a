"""Numbers as text, for pages, tables and messages.

`web/numbers.js` does the same in the browser; a test compares the two.
"""

from __future__ import annotations

import math
from typing import Any

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: Any, digits: int = 4, scale: float | None = None) -> str:
    """Return `value` as text: "11,650", "0.0653", "1.6·10⁻⁸", "–" for None and NaN; other values than numbers as they
    are.

    Args:
        value: anything.
        digits: significant digits; the whole part of a number is never rounded below 10⁹.
        scale: the range of such numbers, where it is known: `digits` of its digits are shown, so that in a range of 1
            10⁻⁸ is 0.
    """
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "-∞"
    unit = scale or abs(value)
    if abs(value) <= 0.5 * unit * 10.0 ** (1 - digits):
        return "0"
    if not (unit >= 1e-4 and max(unit, abs(value)) < 1e9):
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{_bare(mantissa)}·10{str(int(exponent)).translate(SUPERSCRIPTS)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(unit)))
    return _bare(f"{value:,.{decimals}f}")


def _bare(text: str) -> str:
    """Remove zeros without meaning."""
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
