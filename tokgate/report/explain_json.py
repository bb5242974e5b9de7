"""An explained log as JSON values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from tokgate.report.explain_compare import Comparison
from tokgate.report.explain_ranks import missing_ranks, odd_ranks
from tokgate.report.explain_record import Explanation
from tokgate.report.explain_text import headline, state


def explanation_json(record: Explanation) -> dict[str, Any]:
    """Everything the text says, and more, with units in the names."""
    found: dict[str, Any] = plain(record)
    found["headline"] = headline(record)
    found["state"] = state(record)
    found["speculative"] = record.speculative
    found["odd_ranks"] = plain(odd_ranks(record.captures))
    found["missing_captures"] = plain(missing_ranks(record))
    return found


def comparison_json(found: Comparison) -> dict[str, Any]:
    """The comparison, with the break-even's verdict."""
    values: dict[str, Any] = plain(found)
    if found.break_even is not None:
        values["break_even"] |= {"speedup": found.break_even.speedup, "wins": found.break_even.wins}
    return values


def plain(value: object) -> Any:
    """JSON values of dataclasses, times and numbers; what is not finite becomes ``null``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
