"""A stored run held against itself: what its files hold, what ``run.json`` says, and where the files stand.

Names in Samples become paths of baselines: none is taken that the run does not have.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tokgate.errors import SampleFault
from tokgate.gate.results import RunFacts, told_of_samples
from tokgate.gate.start import STARTUP, STARTUP_TOGETHER
from tokgate.gate.words import count
from tokgate.load.sample import Sample, read_samples


def samples_of(folder: Path, facts: RunFacts) -> list[Sample]:
    """All Samples of a run, in order of their files.

    Raises:
        SampleFault: one is lost, was added or edited since, cannot be read, is of what the run did not measure, or
            stands in the folder of another case.
    """
    root = folder / "samples"
    if facts.samples is not None:
        held = told_of_samples(folder)
        if held is not None and held["count"] != facts.samples.count:
            raise SampleFault(
                f"run {facts.run}: it holds {held['count']} of its {count(facts.samples.count, 'sample')}"
            )
        if held is None or held["digest"] != facts.samples.digest:
            raise SampleFault(
                f"run {facts.run}: its samples are not as it stored them: their digest does not fit run.json",
                ["a file was edited, renamed or replaced since; measure again"],
            )
    found = [(path, sample) for path in sorted(root.rglob("*.sample.json")) for sample in read_samples(path)]
    if not found:
        raise SampleFault(f"{root}: holds no samples")
    if odd := [f"{path}: {why}" for path, sample in found for why in _odd(path, sample, facts)]:
        raise SampleFault(f"run {facts.run} holds samples that are not its own", odd[:20])
    return [sample for _, sample in found]


def _odd(path: Path, sample: Sample, facts: RunFacts) -> Iterator[str]:
    """Why a Sample cannot be what this run stored in that file."""
    of = sample.identity
    known = {
        "profile": [*facts.profiles, *facts.references],
        "workload": [*facts.workloads, STARTUP, STARTUP_TOGETHER],
        "host_class": facts.host_class.split(", "),
    }
    for key, names in known.items():
        if (name := getattr(of, key)) not in names:
            yield f"{key.replace('_', ' ')} {name!r}, and run.json has {', '.join(names)}"
    if path.parts[-3:-1] != (of.profile, of.workload):
        yield f"profile {of.profile!r}, workload {of.workload!r} in the folder of another"
