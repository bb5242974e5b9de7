"""A founding run that several tests look at."""

from __future__ import annotations

import pytest

from tests.gate.runs import Finished, gate


@pytest.fixture(scope="session")
def founding(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The founding scenario, EAGLE-3 against its baseline, without stored baselines."""
    return gate(
        tmp_path_factory.mktemp("founding"),
        "--profiles=eagle3-graphs",
        "--workloads=chat-bs1",
        "--runs=6",
        "--trace-steps=10",
    )
