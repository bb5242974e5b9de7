"""Fields of a stored Sample, checked as they are read: what was edited is a fault of the file, never a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from typing import Any

from tokgate.errors import SampleFault


def figures(data: Mapping[str, Any], key: str) -> dict[str, float]:
    """Name -> number, of a key of a stored Sample; empty where it may be lacking.

    Raises:
        SampleFault: a value that is no finite number; none that tokgate stored is.
        KeyError: ``metrics`` are lacking.
    """
    found = is_object(key, data[key] if key == "metrics" else data.get(key, {}))
    return {name: figure(f"{key}.{name}", value) for name, value in found.items()}


def objects(data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """A stored list of objects, of a key of a stored Sample.

    Raises:
        SampleFault: it is none.
        KeyError: ``requests`` are lacking.
    """
    found = data[key] if key == "requests" else data.get(key, [])
    if not isinstance(found, list | tuple):
        raise SampleFault(f"not a sample: {key} is {found!r}"[:280] + ", not a list")
    return [is_object(f"{key}.{number}", item) for number, item in enumerate(found)]


def is_object(what: str, value: Any) -> Mapping[str, Any]:
    """The value, checked.

    Raises:
        SampleFault: it is no object.
    """
    if not isinstance(value, dict):
        raise SampleFault(f"not a sample: {what} is {value!r}"[:280] + ", not an object")
    return value


def figure(what: str, value: Any) -> float:
    """A stored number.

    Raises:
        SampleFault: it is none, or not finite.
    """
    if not _is(value, _TYPES["float"]):
        raise SampleFault(f"not a sample: {what} is {value!r}, not a number"[:300])
    return float(value)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "tuple[int, ...]": (list, tuple),
    "Mapping[str, Any]": (dict,),
    "None": (type(None),),
}
"""How the fields' annotations are found in JSON."""


_LARGEST = 2**63
"""No count and no time is beyond this, and what is within it can be reckoned with as a float."""


@cache
def _allowed(kind: type) -> Mapping[str, tuple[type, ...]]:
    """Field -> types that its value may have."""
    return {
        item.name: tuple(found for part in str(item.type).split(" | ") for found in _TYPES[part])
        for item in fields(kind)
    }


def _is(value: Any, types: tuple[type, ...]) -> bool:
    """Whether a value is of these types: a truth value is no number, and neither is NaN or an infinity."""
    if isinstance(value, bool) or not isinstance(value, types):
        return False
    if isinstance(value, int):
        return -_LARGEST < value < _LARGEST
    if isinstance(value, list | tuple):
        return {int}.issuperset(type(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def fields_of(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """What is stored of a dataclass of a Sample, by field.

    Raises:
        SampleFault: a field that it does not have, one that it lacks, or a value of another type than its annotation
            says.
    """
    allowed = _allowed(kind)
    for name, value in data.items():
        if name not in allowed:
            unknown = ", ".join(sorted(data.keys() - allowed.keys()))
            raise SampleFault(f"not a sample: {kind.__name__} has no field {unknown}")
        if not _is(value, allowed[name]):
            raise SampleFault(f"not a sample: {kind.__name__}.{name} cannot be {value!r}"[:300])
    lacking = [
        item.name
        for item in fields(kind)
        if item.name not in data and item.default is MISSING and item.default_factory is MISSING
    ]
    if lacking:
        raise SampleFault(f"not a sample: {kind.__name__} lacks {', '.join(lacking)}")
    return dict(data)
