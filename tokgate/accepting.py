"""Accepting: a run's Samples become one session of each stored baseline that they cover.

Only ``tokgate accept`` calls this, and nothing lowers a baseline by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml

from tokgate.baselines import SCHEMA, differences, digest, identity_of, load, path_of
from tokgate.errors import UsageFault
from tokgate.host.stored_file import held, write_whole
from tokgate.load.sample import Identity, Sample, twice

HEADER = "# Written by `tokgate accept`, reviewed by people. A session is one recorded run.\n"


def accept(
    root: Path,
    samples: Sequence[Sample],
    *,
    run: str,
    reason: str,
    metrics: Sequence[str],
    new_epoch: bool,
    tokgate_version: str,
) -> list[Path]:
    """Record the Samples of a run as one session of each case that they cover.

    Args:
        root: the ``baselines`` folder.
        samples: every Sample of the run, of any number of cases.
        run: the run's name, kept as provenance.
        reason: why these figures are accepted, for people.
        metrics: names of the metrics to store.
        new_epoch: start a new level instead of adding to the last one; also done where the identity
            of what is measured has changed, since old sessions cannot be compared with it.
        tokgate_version: provenance.

    Returns:
        The files written.

    Raises:
        UsageFault: a void, failed or copied run among the Samples, an empty reason, this run already recorded, runs of
            several builds, no gated metric in a case, or a value that cannot have been measured.
        ResultsUnwritable: a file cannot be written.
    """
    if not reason.strip(" ."):
        raise UsageFault("accept needs a reason, for the person who reads the review")
    spoiled = [f"{_name(s)} run {s.identity.run}: {why}" for s in samples for why in _spoils(s)]
    if spoiled:
        raise UsageFault(f"run {run} cannot be accepted: {len(spoiled)} void or failed runs", spoiled[:20])
    if copies := twice(samples):
        raise UsageFault(f"run {run} cannot be accepted: it holds a run more than once", copies[:20])
    prepared: dict[Path, str] = {}
    # Two that accept at once would each add to what it read, and the later one undo the earlier.
    with held(root):
        for case in _cases(samples):
            first = case[0].identity
            _check_alike(case)
            path = path_of(root, first.host_class, first.profile, first.workload)
            session: dict[str, object] = {
                "run": run,
                "at": first.started_at,
                "sglang": first.sglang_version,
                "tokgate": tokgate_version,
                "launches": len({s.identity.launch for s in case}),
                "reason": reason,
                "samples": _figures(case, metrics),
            }
            session["digest"] = digest(session)
            prepared[path] = _text(_updated(path, first, session, new_epoch=new_epoch))
        for path, text in prepared.items():
            write_whole(path, text)
    return list(prepared)


def _check_alike(case: Sequence[Sample]) -> None:
    """Raises:
    UsageFault: runs of one case that were not measured on the same build, or not as the same case.
    """
    for key in (*identity_of(case[0].identity), "sglang_version"):
        found = sorted({str(getattr(sample.identity, key)) for sample in case})
        if len(found) > 1:
            raise UsageFault(
                f"{_name(case[0])} holds runs of more than one {key.replace('_', ' ')}: {', '.join(found)}"
            )


def _figures(case: Sequence[Sample], metrics: Sequence[str]) -> dict[str, list[float]]:
    """The runs of each metric that the case has.

    Raises:
        UsageFault: it has none of them, or a value that cannot have been measured.
    """
    found: dict[str, list[float]] = {}
    for metric in dict.fromkeys(metrics):  # named twice, a run would count twice
        for sample in case:
            if metric not in sample.metrics:
                continue
            value = sample.metrics[metric]
            if not math.isfinite(value) or value < 0:
                raise UsageFault(
                    f"{_name(sample)} run {sample.identity.run}: {metric} is {value!r}: not a measurement"
                )
            found.setdefault(metric, []).append(_rounded(value))
    if not found:
        raise UsageFault(f"{_name(case[0])} has none of the gated metrics: {', '.join(metrics)}")
    return found


def _updated(
    path: Path, identity: Identity, session: Mapping[str, object], *, new_epoch: bool
) -> dict[str, object]:
    """The whole file with the session added."""
    epochs: list[dict[str, object]] = []
    if path.is_file():
        stored = load(path)
        epochs = yaml.safe_load(path.read_text(encoding="utf-8"))["epochs"]
        if any(s.run == session["run"] for s in stored.sessions):
            raise UsageFault(f"{path} already holds run {session['run']}")
        new_epoch = new_epoch or bool(differences(stored, identity))
    if new_epoch or not epochs:
        epochs.append({"reason": session["reason"], "sessions": []})
    sessions = epochs[-1]["sessions"]
    assert isinstance(sessions, list)
    sessions.append(dict(session))
    return {"schema": SCHEMA, "identity": identity_of(identity), "epochs": epochs}


def _cases(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    grouped: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        grouped.setdefault((sample.identity.profile, sample.identity.workload), []).append(sample)
    yield from grouped.values()


def _spoils(sample: Sample) -> Iterator[str]:
    yield from (void.message for void in sample.void)
    bad = [r for r in sample.requests if r.outcome != "ok"]
    if bad:
        yield f"{len(bad)} of {len(sample.requests)} requests not ok ({bad[0].outcome}: {bad[0].detail})"


def _name(sample: Sample) -> str:
    return f"{sample.identity.workload}[{sample.identity.profile}]"


def _rounded(value: float) -> float:
    """Six significant digits: more than any clock here resolves, and a diff that people can read."""
    return float(f"{value:.6g}")


class _Dumper(yaml.SafeDumper):
    """Block style for mappings, one line for a list of figures."""


def _list(dumper: _Dumper, data: list[object]) -> yaml.Node:
    flow = all(isinstance(item, (int, float)) for item in data)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=flow)


_Dumper.add_representer(list, _list)


def _text(content: Mapping[str, object]) -> str:
    return HEADER + yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, width=10_000)
