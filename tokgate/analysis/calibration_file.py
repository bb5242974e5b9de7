"""Calibrations as YAML files: the one place of the analysis that touches the disk."""

from __future__ import annotations

from pathlib import Path

import yaml

from tokgate.analysis.calibration import Calibration, from_document, to_document
from tokgate.errors import ResultsUnwritable, SampleFault


def read_calibration(path: Path) -> Calibration:
    """Read a calibration.

    Raises:
        SampleFault: unreadable, not YAML, or not a calibration; names the file.
    """
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SampleFault(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise SampleFault(f"{path}: not YAML") from error
    if not isinstance(data, dict):
        raise SampleFault(f"{path}: not a calibration")
    try:
        return from_document(data)
    except SampleFault as fault:
        raise SampleFault(f"{path}: {fault.headline}", fault.details) from fault


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration, one line for each launch's runs, so that a review shows what was added.

    Raises:
        ResultsUnwritable: disk full, folder missing or read-only.
    """
    text = yaml.safe_dump(to_document(calibration), sort_keys=False, default_flow_style=None, width=1000)
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise ResultsUnwritable(f"{path}: cannot be written: {error.strerror}") from error
