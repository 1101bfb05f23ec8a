"""Registries of names that a user can write, each with a title and a place; other packages can add to them.

A registry is the only list of its kind: configuration, `--help`, estimator, report and explorer read it. It contains
places instead of classes, so that listing the names imports nothing heavy:

    NETWORKS = Registry("network", {"mlp": Entry("dense layers", "lapae.networks.builtin:mlp")}, group="lapae.networks")
    NETWORKS["mlp"].load()                     # the function, imported now
    NETWORKS["mine"] = Entry("my own", my_network)

Another package adds a name through an entry point of the group. It leads to an `Entry`, preferably in a module that
imports nothing heavy, or to the object itself, which then has its `title` (and its `options`) as attributes:

    [project.entry-points."lapae.networks"]
    mine = "my_package.networks:mine"

An entry with `research=True` is for comparisons with a paper: it can be named like any other, but help, choices and
messages omit it, except with `--help-all` (`research_shown`).
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
        """One line for `--help` and the report."""
        ...


E = TypeVar("E", bound=Titled)

_RESEARCH_SHOWN: ContextVar[bool] = ContextVar("research_shown", default=False)


@contextmanager
def research_shown() -> Iterator[None]:
    """Show entries marked as research in help and choices, as `--help-all` does."""
    before = _RESEARCH_SHOWN.set(True)
    try:
        yield
    finally:
        _RESEARCH_SHOWN.reset(before)


def showing_research() -> bool:
    """Return whether help shows everything, as with `--help-all`."""
    return _RESEARCH_SHOWN.get()


@dataclass(frozen=True)
class Entry:
    """The title of a name, and the place of the object that it names."""

    title: str
    target: Any
    """`"module:name"`, `"module"`, or the object itself."""
    options: Any = None
    """Frozen dataclass of its options, or the place of it: every field has a default, and its docstring is the help."""
    research: bool = field(default=False, kw_only=True)
    """Whether it is only for comparisons: usable by name, but hidden from help and choices."""

    def load(self) -> Any:
        """Return the named object, importing it if the target is a place."""
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
    """Return an entry unchanged; make one of anything else (a class, a function) with its `title`, `options` and
    `research`."""
    if isinstance(found, Entry):
        return found
    title = getattr(found, "title", None) or (found.__doc__ or found.__name__).strip().splitlines()[0]
    return Entry(title, found, getattr(found, "options", None), research=bool(getattr(found, "research", False)))


def entry_points(group: str) -> dict[str, str]:
    """Return the entry points that installed packages add to a group: {name: "module:object"}."""
    return {point.name: point.value.partition("[")[0].strip() for point in metadata.entry_points(group=group)}


class Registry(MutableMapping[str, E], Generic[E]):
    """A dictionary from names to entries. Entry points are loaded when they are looked up."""

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
            kind: what is named, for error messages ("method").
            own: the library's entries, which an entry point cannot replace.
            group: the entry point group through which other packages add names.
            adapt: makes an entry from the object of an entry point.
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
        """Return the entry of a name; raise ConfigError with similar names if there is none."""
        if name not in self:
            raise ConfigError(f"unknown {self.kind} {name!r}: {nearest(name, self, self.visible())}")
        return self[name]

    def visible(self) -> list[str]:
        """Return the names to show: all but those for research, unless these are requested (`research_shown`)."""
        return [name for name in self if _RESEARCH_SHOWN.get() or not self._is_research(name)]

    def titles(self) -> dict[str, str]:
        """Return the titles of the visible names. The title of one that cannot be loaded says so."""
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
    """Say which name was probably meant, and which there are.

    Args:
        name: what was written.
        valid: all names that could have been meant.
        shown: those to list; default: all.
    """
    names = list(valid)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return hint + f"expected one of {', '.join(names if shown is None else shown)}"


def listing(titles: Mapping[str, str]) -> str:
    """Write names and titles in two columns."""
    width = max(map(len, titles), default=0)
    return "\n".join(f"  {name:<{width}}  {title}" for name, title in titles.items())
