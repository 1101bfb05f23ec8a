"""The weights that the posterior covers: those of a part of the network, or those whose names match a pattern."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from lapae.errors import ConfigError

PARTS = ("encoder", "decoder")


def known_weights(uncertain: str | Sequence[str], names: Sequence[str]) -> frozenset[str]:
    """Return the names of the parameters that are treated as known.

    Args:
        uncertain: "all", "encoder", "decoder", or patterns of names (`*` for anything, `?` for a character, `[0-3]` for
            one of several), as a sequence or a string with commas.
        names: of all parameters of the network.
    """
    patterns = [p.strip() for p in uncertain.split(",")] if isinstance(uncertain, str) else list(uncertain)
    if patterns == ["all"]:
        return frozenset()
    found: set[str] = set()
    for pattern in patterns:
        matched = {n for n in names if fnmatchcase(n, f"{pattern}.*" if pattern in PARTS else pattern)}
        if not matched:
            shown = ", ".join(names[:3])
            raise ConfigError(
                f"uncertain={pattern!r}: expected all, encoder, decoder or a pattern of parameter names, and no name "
                f"matches; they are {shown}{' …' if len(names) > 3 else ''}"
            )
        found |= matched
    return frozenset(names) - found
