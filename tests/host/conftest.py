"""An NVML of a few GPUs that exists only in the tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.host.fake_nvml import nvml_of
from tokgate.host.gpu import Nvml


@pytest.fixture
def nvml() -> Callable[..., Nvml]:
    """Makes an open NVML: one dictionary of changes against a healthy GPU for each GPU."""
    return nvml_of
