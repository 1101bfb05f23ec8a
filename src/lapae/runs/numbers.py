"""Numbers as people write them: the one place that pages, tables and messages take them from.

`web/numbers.js` says the same in the browser; a test compares the two.
"""

from __future__ import annotations

import math
from typing import Any

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: Any, digits: int = 4, scale: float | None = None) -> str:
    """`value` as text: "11,650", "0.0653", "1.6·10⁻⁸", "–" for None and NaN; what is no number as it is.

    Args:
        value: anything.
        digits: significant digits; the whole part of a number is never rounded below 10⁹.
        scale: what the number is small or large beside, such as the range of its column: 10⁻⁸ beside 1 is 0.
    """
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "-∞"
    unit = max(abs(value), scale or 0.0)
    if unit == 0:
        return "0"
    if not 1e-4 <= unit < 1e9:
        mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
        return f"{_bare(mantissa)}·10{str(int(exponent)).translate(SUPERSCRIPTS)}" if value else "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(unit)))
    return _bare(f"{value:,.{decimals}f}")


def _bare(text: str) -> str:
    """Without zeros that say nothing."""
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text
