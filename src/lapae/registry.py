"""Names that a user may write, each with its title and the place of what it names; other packages may add to them.

A registry is the only list of its kind: configuration, `--help`, estimator, report and explorer read it. It holds
places instead of classes, so that showing the names imports nothing heavy:

    NETWORKS = Registry("network", {"mlp": Entry("dense layers", "lapae.networks.builtin:mlp")}, group="lapae.networks")
    NETWORKS["mlp"].load()                     # the function, imported now
    NETWORKS["mine"] = Entry("my own", my_network)

Another package adds a name through an entry point of the group. It leads to an `Entry`, best in a module that imports
nothing heavy, or to the thing itself, which then says its `title` (and its `options`) as attributes:

    [project.entry-points."lapae.networks"]
    mine = "my_package.networks:mine"

An entry with `research=True` is for comparisons with a paper: it can be named like any other, and help, choices and
messages leave it out, unless `--help-all` asks for it (`research_shown`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module, metadata
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from lapae.errors import ConfigError


class Titled(Protocol):
    """Anything with a title: the base of all entries."""

    @property
    def title(self) -> str:
        """One line for a reader: what `--help` and the report show."""
        ...


E = TypeVar("E", bound=Titled)

_RESEARCH_SHOWN: ContextVar[bool] = ContextVar("research_shown", default=False)


@contextmanager
def research_shown() -> Iterator[None]:
    """Show entries marked as research in help and choices, too: `--help-all`."""
    before = _RESEARCH_SHOWN.set(True)
    try:
        yield
    finally:
        _RESEARCH_SHOWN.reset(before)


def showing_research() -> bool:
    """Return whether help shows everything: `--help-all`."""
    return _RESEARCH_SHOWN.get()


@dataclass(frozen=True)
class Entry:
    """A name's title, and the place of what it names."""

    title: str
    target: Any
    """`"module:name"`, `"module"`, or the thing itself."""
    options: Any = None
    """Frozen dataclass of its options, or the place of it: a default for every field, docstrings that are the help."""
    research: bool = field(default=False, kw_only=True)
    """Whether it is for comparisons alone: usable by name, hidden from help and choices."""

    def load(self) -> Any:
        """Return what is named, and import it if the target is a place."""
        return _load(self.target)

    def load_options(self) -> Any:
        """Return the dataclass of its options; None if it has none."""
        return _load(self.options)


def _load(target: Any) -> Any:
    if not isinstance(target, str):
        return target
    module, _, name = target.partition(":")
    found = import_module(module)
    return attrgetter(name)(found) if name else found


def as_entry(found: Any) -> Entry:
    """Return an entry as it is; anything else (a class, a function) by its own `title`, `options` and `research`."""
    if isinstance(found, Entry):
        return found
    title = getattr(found, "title", None) or (found.__doc__ or found.__name__).strip().splitlines()[0]
    return Entry(title, found, getattr(found, "options", None), research=bool(getattr(found, "research", False)))


def entry_points(group: str) -> dict[str, str]:
    """Return what installed packages add to a group: {name: "module:object"}."""
    return {point.name: point.value.partition("[")[0].strip() for point in metadata.entry_points(group=group)}


class Registry(MutableMapping[str, E], Generic[E]):
    """A dictionary from names to entries. Those of entry points are loaded when they are asked for."""

    def __init__(
        self,
        kind: str,
        own: Mapping[str, E],
        *,
        group: str | None = None,
        adapt: Callable[[Any], Any] = as_entry,
    ) -> None:
        """Start with the library's own entries.

        Args:
            kind: what the names are names of, for error messages ("method").
            own: the library's entries; an entry point cannot replace one of these.
            group: the entry point group through which other packages add names.
            adapt: makes an entry of what an entry point leads to.
        """
        self.kind, self._entries, self._group, self._adapt = kind, dict(own), group, adapt

    @cached_property
    def _points(self) -> dict[str, str]:
        return {} if self._group is None else entry_points(self._group)

    def __getitem__(self, name: str) -> E:
        if name not in self._entries:
            point = self._points[name]
            try:
                self._entries[name] = self._adapt(_load(point))
            except Exception as error:
                raise ConfigError(f"the {self.kind} {name!r} of {point} cannot be loaded: {error!r}") from error
        return self._entries[name]

    def __setitem__(self, name: str, entry: Any) -> None:
        self._entries[name] = self._adapt(entry)

    def __delitem__(self, name: str) -> None:
        del self._entries[name]

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys([*self._entries, *self._points])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._points

    def find(self, name: str) -> E:
        """Return the entry of a name; ConfigError with the nearest names if there is none."""
        if name not in self:
            raise ConfigError(f"unknown {self.kind} {name!r}: {nearest(name, self, self.visible())}")
        return self[name]

    def visible(self) -> list[str]:
        """Names to show: all but those of research, unless these are asked for (`research_shown`)."""
        return [name for name in self if _RESEARCH_SHOWN.get() or not self._is_research(name)]

    def titles(self) -> dict[str, str]:
        """Titles of the visible names. One that cannot be loaded says so: the others keep their help."""
        found = {}
        for name in self.visible():
            try:
                found[name] = self[name].title
            except ConfigError as error:
                found[name] = f"({error})"
        return found

    def _is_research(self, name: str) -> bool:
        try:
            return getattr(self[name], "research", False)
        except ConfigError:  # it cannot be loaded, which its title says
            return False


def nearest(name: str, valid: Iterable[str], shown: Iterable[str] | None = None) -> str:
    """Say what was probably meant, and what there is to choose from.

    Args:
        name: what was written.
        valid: all names that could have been meant.
        shown: those to list; default: all.
    """
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return hint + f"expected one of {', '.join(names if shown is None else shown)}"


def listing(titles: Mapping[str, str], indent: str = "  ") -> str:
    """Write names and titles in two columns."""
    width = max(map(len, titles), default=0)
    return "\n".join(f"{indent}{name:<{width}}  {title}" for name, title in titles.items())
