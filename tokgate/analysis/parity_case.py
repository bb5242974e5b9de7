"""A parity case on disk: the requests that two servers must answer alike, to be replayed at will.

::

    {"kind": "tokgate parity case", "schema_version": 1, "note": "shrunk from 8 requests",
     "requests": [{"prompt_ids": [3, 17, 260], "new_tokens": 32}],
     "together": true}
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from tokgate.config.document import Section
from tokgate.errors import ResultsUnwritable, UsageFault


class CaseRequest(Section):
    """One greedy request.

    Attributes:
        prompt_ids: token ids.
        new_tokens: tokens to generate; ends of sequence are ignored.
        sampling_seed: sent along; at temperature 0 it must not matter.
    """

    prompt_ids: list[int] = Field(min_length=1)
    new_tokens: int = Field(ge=1)
    sampling_seed: int | None = None


class Case(Section):
    """A batch of requests.

    Attributes:
        note: where the case comes from.
        together: send all requests at once (a batch), not one after another.
        flush_first: empty the servers' prefix caches before.
        wanted_ids: per request, the right output where it is known beforehand (a synthetic pair).
    """

    kind: Literal["tokgate parity case"] = "tokgate parity case"
    schema_version: Literal[1] = 1
    note: str = ""
    requests: list[CaseRequest] = Field(min_length=1)
    together: bool = True
    flush_first: bool = True
    wanted_ids: list[list[int]] | None = None


def load_case(path: Path) -> Case:
    """Read a case.

    Raises:
        UsageFault: cannot be read, or is not a case; says where.
    """
    try:
        case = Case.model_validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageFault(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageFault(f"{path}: is not UTF-8 (byte {error.start})") from error
    except ValidationError as error:
        details = [f"{'.'.join(map(str, e['loc'])) or '(top)'}: {e['msg']}" for e in error.errors()[:5]]
        raise UsageFault(f"{path}: is not a parity case", details) from error
    if case.wanted_ids is not None and len(case.wanted_ids) != len(case.requests):
        raise UsageFault(f"{path}: {len(case.wanted_ids)} wanted outputs for {len(case.requests)} requests")
    return case


def save_case(case: Case, path: Path) -> None:
    """Write a case, whole or not at all.

    Raises:
        ResultsUnwritable: disk full or folder read-only.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(case.model_dump_json(indent=1, exclude_none=True) + "\n")
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise ResultsUnwritable(f"{path}: cannot be written: {error.strerror}") from error
