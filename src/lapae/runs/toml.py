"""Configuration files: strict TOML in, TOML out.

An unknown key or a value of the wrong type is an error that names the file, the key and the nearest valid one. A
`[versions]` table (what wrote the file) and options of earlier versions (`RETIRED`) are accepted and ignored.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import tomllib
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, get_args, get_type_hints

from lapae.config import Config, MethodConfig
from lapae.config.fields import misfit
from lapae.config.methods import belongs_to, option_names, options_of, unknown_option
from lapae.config.sections import RETIRED, RETIRED_VALUES
from lapae.errors import ConfigError
from lapae.registry import nearest
from lapae.runs.texts import read_text

IGNORED = "versions"


def read_config(path: str | Path) -> Config:
    """Return the configuration in a TOML file, with defaults filled in."""
    try:
        text = read_text(Path(path)).decode("utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text file in UTF-8: {error.reason} at byte {error.start}") from error
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers of thousands of digits, which Python refuses
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    return config_from_dict(tables, str(path))


def write_config(config: Config) -> str:
    """Return `config` as the text of a TOML file, with a [versions] table of what wrote it."""
    return dumps({**config_to_dict(config), IGNORED: versions()})


def versions() -> dict[str, str]:
    """Return the versions of lapae, torch and Python."""
    from lapae import __version__

    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = "unknown"
    return {"lapae": __version__, "torch": torch, "python": platform.python_version()}


def config_to_dict(config: Config) -> dict[str, dict[str, Any]]:
    """Return plain nested dictionaries, one for each table."""
    sections = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {
        name: section.to_dict() if isinstance(section, MethodConfig) else dataclasses.asdict(section)
        for name, section in sections.items()
    }


def config_from_dict(tables: Any, origin: str) -> Config:
    """Return the configuration of `config_to_dict`; errors name the `origin` of the tables."""
    sections = {f.name: get_type_hints(Config)[f.name] for f in dataclasses.fields(Config)}
    built = {}
    if not isinstance(tables, Mapping):
        raise ConfigError(f"{origin}: expected tables of options, got {_describe(tables)}")
    for name, table in tables.items():
        if name == IGNORED:
            continue
        if name not in sections:
            owner = next((s for s, cls in sections.items() if name in option_names(cls)), None)
            owner = owner or ("method" if belongs_to(name) else None)
            hint = f"it belongs into the table [{owner}]" if owner else nearest(name, sections)
            raise ConfigError(f"{origin}: unknown key {name!r}: {hint}")
        if not isinstance(table, Mapping):
            raise ConfigError(f"{origin}: {name} must be a table [{name}], got {_describe(table)}")
        table = _without_retired(table, name)
        built[name] = _method(table, origin) if name == "method" else _section(sections[name], table, name, origin)
    return Config(**built)


def dumps(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return TOML text of tables of plain values (str, int, float, bool, lists of these), without None, which TOML
    lacks."""
    lines: list[str] = []
    for name, table in tables.items():
        lines += [f"[{_key(name)}]"]
        lines += [f"{_key(key)} = {_value(value)}" for key, value in table.items() if value is not None]
        lines += [""]
    return "\n".join(lines)


def _without_retired(table: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Leave out options and values of earlier versions."""
    keys, values = RETIRED.get(section, ()), RETIRED_VALUES.get(section, {})
    return {
        key: value for key, value in table.items() if key not in keys and (key not in values or value != values[key])
    }


def _method(table: Mapping[str, Any], origin: str) -> MethodConfig:
    """Return the method of a flat table: its name and its own options."""
    given = dict(table)
    name = _convert(given.pop("method", MethodConfig().method), str, f"{origin}: method.method")
    try:
        options = options_of(name)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error
    for key in given:
        if key not in option_names(options):
            raise ConfigError(f"{origin}: {unknown_option(name, key)}")
    return MethodConfig(name, _section(options, given, "method", origin))


def _section(cls: type, table: Mapping[str, Any], section: str, origin: str) -> Any:
    hints = get_type_hints(cls)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise ConfigError(f"{origin}: unknown key {section}.{key}: {nearest(key, option_names(cls))}")
        values[key] = _convert(value, hints[key], f"{origin}: {section}.{key}")
    return cls(**values)


def _convert(value: Any, kind: Any, where: str) -> Any:
    """Return `value` as the type `kind` of a field; only integers are converted to floats, and lists to tuples."""
    if any(isinstance(item, int) and abs(item) >= 2**63 for item in (value if isinstance(value, list) else [value])):
        raise ConfigError(f"{where}: the number is too large")
    if (expected := misfit(value, kind)) is not None:
        raise ConfigError(f"{where}: expected {expected}, got {_describe(value)}")
    if isinstance(value, list):
        return tuple(value)
    return float(value) if type(value) is int and float in (kind, *get_args(kind)) else value


def _describe(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        text = "too large to show"
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float):
        return repr(float(value))  # inf and nan too, which JSON has not
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
