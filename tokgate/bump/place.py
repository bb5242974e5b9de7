"""Place: the host class and the engines of a bump or bisection. What was measured there answers for no other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tokgate.config.engine import Engine
from tokgate.errors import SampleFault, UsageFault
from tokgate.load.sample import write_json

FILE = "host.json"


def keep_place(
    folder: Path,
    host_classes: Mapping[str, str],
    engines: Mapping[str, Engine],
    driver: str | None,
    *,
    begun: bool,
) -> list[str]:
    """Keep where and with what a folder is measured; refuse to go on with it anywhere else.

    Args:
        folder: of the bump or bisection.
        host_classes: of this host, by profile.
        engines: by the part they play, ``old`` and ``new``.
        driver: of the GPU, where there is one and it says.
        begun: whether an earlier call measured into the folder.

    Returns:
        What a reader should know, one line each.

    Raises:
        UsageFault: it was measured on another host class or with another engine, or does not say on which.
        SampleFault: what it says cannot be read.
        ResultsUnwritable: it cannot be written.
    """
    path = folder / FILE
    drivers: list[str] = []
    if path.is_file():
        try:
            known = json.loads(path.read_text(encoding="utf-8"))
            classes = {str(name): str(of) for name, of in known["host_classes"].items()}
            digests = {str(part): str(digest) for part, digest in known["engines"].items()}
            drivers = [str(version) for version in known["drivers"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SampleFault(f"{path}: {type(error).__name__}: {error}") from error
        for name, here in host_classes.items():
            if classes.get(name) != here:
                raise UsageFault(
                    f"profile {name} of {folder} was measured on {classes.get(name)}, and this host is {here}",
                    ["go on there, or start anew here, without --resume"],
                )
        for part, engine in engines.items():
            if digests.get(part) != engine.digest:
                raise UsageFault(
                    f"the {part} engine of {folder} was another one: {engine.name} has changed since",
                    ["its engine file as it was goes on; or start anew, without --resume"],
                )
    elif begun:
        raise UsageFault(
            f"{folder} does not say on which host class it was measured: there is no {FILE}",
            ["start anew, without --resume"],
        )
    if driver is not None and driver not in drivers:
        drivers.append(driver)
    digests = {part: engine.digest for part, engine in engines.items()}
    write_json(path, {"host_classes": dict(host_classes), "engines": digests, "drivers": drivers})
    if len(drivers) < 2:
        return []
    return [f"host: measured under drivers {', '.join(drivers)}; each block compares both versions under one"]
