"""Root conftest: the fixture modules, and nothing else."""

pytest_plugins = [
    "fixtures.options",
    "fixtures.interruption",
    "fixtures.benchmarks",
    "fixtures.cases",
    "fixtures.servers",
    "fixtures.signals",
    "fixtures.junit",
    "fixtures.wording",
]
