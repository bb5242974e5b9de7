"""A YAML file with the position of every key, validated against a pydantic model.

All faults of a file are collected before anything is raised, so that one edit mends them all.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from tokgate.config.names import EXPECTED, is_plain
from tokgate.errors import ConfigFault

Location = tuple[str | int, ...]
ModelT = TypeVar("ModelT", bound=BaseModel)


class Section(BaseModel):
    """Base of every validated section: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: 1-based line, dotted key, what is wrong."""

    line: int
    key: str
    message: str


class Document:
    """A parsed YAML file.

    Args:
        path: the file, as it is named in messages.

    Raises:
        ConfigFault: missing, unreadable, not UTF-8, not YAML, or not a mapping.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[Location, int] = {(): 1}
        self.faults: list[Fault] = []
        self.data: dict[str, Any] = self._parse()

    def _parse(self) -> dict[str, Any]:
        try:
            text = self.path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigFault(f"{self.path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigFault(f"{self.path}: is not UTF-8 (byte {error.start})") from error
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ConfigFault(f"{self.path}:{line}: not valid YAML: {error.problem}") from error
        except yaml.YAMLError as error:
            raise ConfigFault(f"{self.path}: not valid YAML: {error}") from error
        if node is None:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise ConfigFault(f"{self.path}:{node.start_mark.line + 1}: expected keys with values at the top")
        data = self._build(node, (), frozenset())
        assert isinstance(data, dict)
        return data

    def _build(self, node: yaml.Node, where: Location, open_nodes: frozenset[int]) -> Any:
        if id(node) in open_nodes:
            self.fault(where, "refers to itself through an anchor")
            return None
        self._lines.setdefault(where, node.start_mark.line + 1)
        inside = open_nodes | {id(node)}
        if isinstance(node, yaml.MappingNode):
            found: dict[str, Any] = {}
            for key_node, value_node in node.value:
                key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else repr(key_node.value)
                at = (*where, key)
                line = key_node.start_mark.line + 1
                if key in found:
                    first = self._lines[at]
                    self.faults.append(Fault(line, dotted(at), f"given twice, first on line {first}"))
                    continue
                self._lines[at] = line
                found[key] = self._build(value_node, at, inside)
            return found
        if isinstance(node, yaml.SequenceNode):
            return [self._build(item, (*where, i), inside) for i, item in enumerate(node.value)]
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            self.fault(where, f"cannot be read as a value: {error}")
            return None

    def section(self, *where: str) -> dict[str, Any]:
        """The mapping at a location as read, empty where there is none: for checks across keys, which
        are made before :meth:`validate` so that its faults and theirs are reported together."""
        found: Any = self.data
        for part in where:
            found = found.get(part) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}

    def line(self, where: Location) -> int:
        """1-based line of a location, or of its nearest enclosing key."""
        while where not in self._lines:
            where = where[:-1]
        return self._lines[where]

    def fault(self, where: Location, message: str) -> None:
        """Record a fault at a location; :meth:`check` raises them all."""
        self.faults.append(Fault(self.line(where), dotted(where), message))

    def plain_names(self, *where: str) -> None:
        """Record names in the section at a location that cannot be parts of a path."""
        for name in self.section(*where):
            if not is_plain(name):
                self.fault((*where, name), f"is no name: expected {EXPECTED}")

    def validate(self, model: type[ModelT]) -> ModelT:
        """The whole file as ``model``.

        Raises:
            ConfigFault: with every fault of the file, those recorded before included, in line order.
        """
        result: ModelT | None = None
        try:
            result = model.model_validate(self.data)
        except ValidationError as error:
            for item in error.errors():
                where = self._yaml_location(tuple(item["loc"]))
                if item["type"] == "extra_forbidden":
                    hint = nearest(str(where[-1]), known_keys(model, where[:-1]))
                    self.fault(where, f"unknown key; {hint}")
                elif item["type"] == "missing":
                    self.fault(where, "is missing")
                else:
                    self.fault(
                        where, f"{item['msg'][0].lower()}{item['msg'][1:]}, got {item['input']!r}"[:300]
                    )
        self.check()
        assert result is not None
        return result

    def _yaml_location(self, where: Location) -> Location:
        """Drop what pydantic inserts into a location (names of union members, '[key]')."""
        kept: Location = ()
        for i, part in enumerate(where):
            last = i == len(where) - 1
            if (*kept, part) in self._lines or last:
                kept = (*kept, part)
        return kept

    def check(self) -> None:
        """Raise :class:`ConfigFault` when any fault was recorded."""
        if not self.faults:
            return
        ordered = sorted(self.faults, key=lambda fault: (fault.line, fault.key))
        count = len(ordered)
        raise ConfigFault(
            f"{self.path}: {count} fault{'s' if count != 1 else ''}",
            [f"{self.path}:{f.line}: {f.key}: {f.message}" for f in ordered],
        )


def dotted(where: Location) -> str:
    """``('profiles', 'a', 'flags', 0)`` -> ``profiles.a.flags[0]``."""
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text or "(top)"


def nearest(name: str, known: list[str]) -> str:
    """A hint for a name that is not known: the nearest known one, or all of them."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        return f"did you mean '{near[0]}'?"
    return f"known here: {', '.join(sorted(known)) or 'none'}"


def known_keys(model: type[BaseModel], where: Location) -> list[str]:
    """Keys, as a file has them, of the model that stands at ``where`` below ``model``."""
    current: list[type[BaseModel]] = [model]
    for part in where:
        following: list[type[BaseModel]] = []
        for candidate in current:
            field = candidate.model_fields.get(str(part))
            if field is not None:
                following.extend(_models_in(field.annotation))
            elif issubclass(candidate, BaseModel) and not candidate.model_fields.get(str(part)):
                # A key of a mapping field: the location names the entry, the models stay the same.
                following.append(candidate)
        current = following
    return [field.alias or name for candidate in current for name, field in candidate.model_fields.items()]


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, dict, list, tuple, Mapping, typing.Annotated):
        for argument in typing.get_args(annotation):
            yield from _models_in(argument)
