"""Builds the errors of a failed server: what is said, and which evidence goes with it."""

from __future__ import annotations

import re

from tokgate.errors import EngineFault, Exited, Hang, HostFault, InterpreterMissing, ModelMissing
from tokgate.host import ports, proc
from tokgate.server import deaths, forensics, probe, wording
from tokgate.server.group import Death, ProcessGroup
from tokgate.server.logtail import last_lines, telling_lines
from tokgate.server.oddity import odd_captures
from tokgate.server.spec import LaunchSpec, port_taken, room_left, unwritable
from tokgate.server.timeline import CAPTURE, Timeline

# How long a dying engine may go on writing its last words.
_LAST_WORDS_S = 1.0
_HEALTH_S = 2.0
_NO_LAUNCHER = re.compile(r"python\S*: (Error while finding module .*|No module named .*|can't open file .*)")
_CRASHED = re.compile(r"^Subprocess (\S+) \(pid=(\d+)\) crashed with exit code (-?\d+)")
_NO_MODEL = re.compile(
    r"is not a local folder and is not a valid model identifier|Repo id must be|"
    r"couldn't connect to .* to load|does not appear to have a file named config\.json"
)


def hang(
    spec: LaunchSpec,
    group: ProcessGroup,
    phase: str,
    words: str,
    waited_s: float,
    limit_s: float,
    usual_s: float | None,
    *,
    timeline: Timeline | None = None,
    serving: bool = False,
    starved_s: float = 0.0,
) -> Hang:
    """Collect the evidence of a hang. The processes are left as they are.

    Args:
        phase: its name.
        words: the phase in words.
        timeline: of the start-up, when it hung there.
        serving: it answers HTTP, so ``/health`` is asked too.
        starved_s: of the time waited, how long this host gave the supervisor no CPU; 0 when little.
    """
    members = group.members()
    headline = wording.no_progress(words, waited_s, limit_s, usual_s)
    name = f"hang-{spec.profile.name}-{group.mark[:8]}-{phase.replace(':', '-').replace(' ', '-')}"
    evidence = forensics.collect(
        members, spec.log_path, spec.forensics_dir, name, f"{spec.profile.name}: {headline}"
    )
    last = (telling_lines(spec.log_path, 1) or [""])[0].strip()
    details = [f"last log line: {last}" if last else "the log is empty"]
    if timeline is not None:
        details += _course(timeline)
    if starved_s:
        details.append(
            f"this host was starved: tokgate itself got no CPU for {wording.seconds(starved_s)} of it"
        )
    stopped = [process for process in members if process.state in {"T", "t"}]
    if stopped:
        details.append("likely cause: stopped by a signal: " + ", ".join(map(wording.process, stopped)))
    if serving:
        details.append(f"/health answers {health(spec)}")
    details += evidence.summary
    return Hang(
        headline,
        details,
        profile=spec.profile.name,
        phase=phase,
        last_log_line=last,
        waited_s=waited_s,
        limit_s=limit_s,
        usual_s=usual_s,
        files=[path for path in (evidence.path, spec.log_path) if path is not None],
    )


def exited(
    spec: LaunchSpec,
    death: Death | None,
    phase: str,
    lived_s: float | None,
    group: ProcessGroup | None = None,
) -> Exited | HostFault:
    """The error for a dead engine, once it has had a moment for its last words.

    A host that made it die is told apart from an engine that did.

    Args:
        death: ``None``: nothing has died yet, but the log holds a fatal error.
        phase: in words.
        lived_s: from spawn, seconds; ``None`` when that says nothing.
    """
    if group is not None and death is not None and not death.is_root:
        group.wait(_LAST_WORDS_S)
        later = group.death()
        death = later if later is not None and not later.is_root else death
    cause = deaths.cause(spec.log_path)
    after = "" if lived_s is None else f" after {wording.seconds(lived_s)}"
    fate, line = _fate(death), cause.line
    if cause.fatal and death is not None:
        # By which signal SGLang then ends its processes and itself says nothing.
        fate = "died"
    if crashed := _CRASHED.search(line):
        # SGLang saw which child died; that the server then ended is only the consequence.
        fate, line = f"{crashed[1]} (pid {crashed[2]}) {wording.status(int(crashed[3]))}", ""
    headline = f"{phase}: {fate}{after}"
    if fault := _host_fault(spec, cause, group):
        return fault
    last = telling_lines(spec.log_path, 3)
    details = list(cause.quoted)
    if not cause.line:
        details += ["the log does not say why; its last lines:", *last] if last else ["the log is empty"]
    if death is not None and group is not None and not death.is_root and group.root.poll() is None:
        details.append(f"the server process (pid {group.pid}) had not noticed")
    return Exited(
        headline + (f": {line}" if line else ""),
        details,
        profile=spec.profile.name,
        phase=phase,
        last_log_line=last[-1].strip() if last else "",
        files=[spec.log_path],
    )


def _fate(death: Death | None) -> str:
    if death is None:
        return "the engine logged a fatal error, though its processes live"
    return ("" if death.is_root else f"{death.name} (pid {death.pid}) ") + wording.status(death.status)


def wrong_answer(spec: LaunchSpec, phase: str, fault: str) -> EngineFault:
    """The error for a server that lives but does not generate what was asked."""
    return EngineFault(
        f"{phase}: {fault}",
        [f"/health answers {health(spec)}", *deaths.cause(spec.log_path).quoted],
        profile=spec.profile.name,
        phase=phase,
        last_log_line="".join(last_lines(spec.log_path, 1)).strip(),
        files=[spec.log_path],
    )


def health(spec: LaunchSpec) -> str:
    """Status of ``/health``, or that it does not answer within two seconds."""
    status, _ = probe.get(spec.host, spec.port, "/health", _HEALTH_S)
    return str(status) if status is not None else f"nothing within {wording.seconds(_HEALTH_S)}"


def _host_fault(spec: LaunchSpec, cause: deaths.Cause, group: ProcessGroup | None) -> HostFault | None:
    if "No space left on device" in cause.line or not room_left(spec.log_path):
        return unwritable(spec.log_path, "No space left on device")
    last = "".join(last_lines(spec.log_path, 1))
    if missing := _NO_LAUNCHER.search(last):
        return InterpreterMissing(
            f"the engine's interpreter {spec.argv[0]} cannot run its launcher: {missing[1]}",
            [f"engine '{spec.engine.name}': check 'python', 'pythonpath' and 'launcher' in its file"],
        )
    if _NO_MODEL.search(cause.line):
        return ModelMissing(f"the engine cannot load the model: {cause.line}", cause.quoted)
    members = group.members() if group is not None else []
    taken = not ports.is_free(spec.port, spec.host)
    if taken and not proc.holders(proc.listeners(spec.port), members):
        return port_taken(spec)
    return None


def _course(timeline: Timeline) -> list[str]:
    lines = []
    kind = timeline.phase.removeprefix(CAPTURE) if timeline.phase.startswith(CAPTURE) else ""
    if kind and (ended := timeline.ended_ranks(kind)):
        lines.append(
            f"that capture ended on {wording.ranks(ended)}, not on {wording.ranks(timeline.open_ranks(kind))}"
        )
    lines += [line for line in odd_captures(timeline.captures) if kind not in line or not kind]
    done = ", ".join(
        f"{item.name} {wording.seconds(item.seconds)}" for item in timeline.done if item.seconds >= 0.005
    )
    return [*lines, f"before it: {done}"] if done else lines
