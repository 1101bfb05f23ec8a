"""Seeded mutations of bytes and of JSON trees. The same seed gives the same input, on any machine."""

from __future__ import annotations

import copy
import random
from typing import Any

NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 10**4, 2**31, 2**63, 10**30, -(2**63), 0.0, -0.5, 1e308, 1e-320),
    *("", "x", "../../etc/passwd", "/etc/passwd", "a\0b", "\ud7ff", "é" * 50, "x" * 5000, "{{7*7}}", "<script>"),
    *([], [0], [-1], [[]], [1, 2, 3], [2**40], [2**20, 2**20], ["a"], [None], {}, {"a": 1}, [[[[[[[[1]]]]]]]]),
    *(3, 7, 64, "mlp", "conv", "block", "kfac", "exact", "vae", "ensemble", "posthoc", "categorical", "bernoulli"),
)


def mutated(content: bytes, chance: random.Random, words: tuple[bytes, ...], others: list[bytes]) -> bytes:
    """A few changes: bits, bytes, numbers of all widths, words of the format, parts moved, doubled or left out."""
    if chance.random() < 0.02:
        return content  # which a loader must take
    data = bytearray(content)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        n = len(data)
        at = chance.randrange(n + 1)
        how = chance.randrange(10)
        if how == 0 and n:
            data[at % n] ^= 1 << chance.randrange(8)
        elif how == 1 and n:
            data[at % n] = chance.randrange(256)
        elif how == 2:
            width, order = chance.choice((1, 2, 4, 8)), chance.choice(("little", "big"))
            number = chance.choice(NUMBERS) % 256**width
            data[at : at + width] = number.to_bytes(width, order)
        elif how == 3 and words:
            word = chance.choice(words)
            data[at : at + chance.choice((0, len(word)))] = word
        elif how == 4:
            del data[at : at + chance.choice((1, 2, 4, 16, n))]
        elif how == 5:
            length = chance.choice((1, 4, 32, n))
            data[at:at] = data[at : at + length] * chance.choice((1, 1, 2, 50))
        elif how == 6:
            data[at:at] = chance.randbytes(chance.choice((1, 4, 64)))
        elif how == 7 and others:
            other = chance.choice(others)
            cut = chance.randrange(len(other) + 1)
            data[at:] = other[cut:]
        elif how == 8 and n:
            # most of what a format decides on is at its beginning or its end
            place = chance.randrange(min(n, 64))
            place = place if chance.random() < 0.7 else n - 1 - place
            data[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        else:
            other_at = chance.randrange(n + 1)
            part = data[other_at : other_at + chance.choice((1, 4, 16))]
            data[at : at + len(part)] = part
    return bytes(data[: 1 << 16])


def mutated_tree(tree: Any, chance: random.Random) -> Any:
    """A JSON tree with a value replaced, removed, or put somewhere else; `tree` itself may be changed."""
    for _ in range(chance.choice((1, 1, 2, 4))):
        places = list(_places(tree))
        if not places or chance.random() < 0.01:
            return copy.deepcopy(chance.choice(HOSTILE))
        parent, key = chance.choice(places)
        how = chance.randrange(6)
        if how == 0:
            del parent[key]
        elif how == 1:
            other, other_key = chance.choice(places)
            parent[key] = copy.deepcopy(other[other_key])  # not the thing itself, which may hold this place
        elif how == 2 and isinstance(parent, dict):
            parent[chance.choice(("x", "__class__", "", "shape", "format"))] = parent.pop(key)
        elif how == 3 and isinstance(parent[key], int) and not isinstance(parent[key], bool):
            parent[key] = parent[key] * chance.choice((-1, 2, 1000, 10**9)) + chance.choice((-1, 0, 1))
        else:
            parent[key] = copy.deepcopy(chance.choice(HOSTILE))
    return tree


def _places(tree: Any):
    """All (container, key) of a tree."""
    waiting, seen = [tree], set()
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict | list) or id(node) in seen:
            continue
        seen.add(id(node))
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            yield node, key
            waiting.append(node[key])
