"""Findings about the operating system: what the evidence and the client's clock depend on."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from tokgate.errors import PortTaken
from tokgate.host import contention, marker, ports, proc, py_spy
from tokgate.host import cpu_speed as cpu_speeds
from tokgate.host.finding import Finding

GIB = 1 << 30
DISK_LEAST_GIB = 2
FILES_LEAST = 65535
SHM_LEAST_GIB = 1
_STEAL_SAMPLE_S = 0.3
_STAMP_ATTEMPTS, _STAMP_WAIT_S = 50, 0.01
_STEAL_WARN, _STEAL_UNFIT = 0.02, 0.10
_SPEED_CPUS, _SPEED_SLOW, _SPEED_SHARE = 4, 1.15, 0.2
# Linux's number; the socket module does not name it.
SO_TIMESTAMPNS = 35


def leftovers() -> Finding:
    """Processes of launches whose tokgate is dead."""
    dead = [item for item in marker.find_all() if item.owner == "dead"]
    if not dead:
        return Finding("leftovers", "ok", "no process of a dead tokgate")
    who = ", ".join(f"pid {item.process.pid} ({proc.title(item.process)})" for item in dead)
    return Finding("leftovers", "unfit", f"of a dead tokgate: {who}", "tokgate reap")


def tracer() -> Finding:
    """Whether py-spy can read a process as it will have to in a hang: tried on one of our own."""
    tool = py_spy.find()
    if tool is None:
        return Finding("ptrace", "warn", "py-spy is missing: a hang has no stacks", "pip install py-spy")
    target = subprocess.Popen(
        [sys.executable, "-S", "-c", "print(flush=True); import time; time.sleep(30)"], stdout=subprocess.PIPE
    )
    try:
        assert target.stdout is not None
        target.stdout.readline()
        done = subprocess.run(
            [tool, "dump", "--pid", str(target.pid)], capture_output=True, text=True, timeout=5, check=False
        )
    except subprocess.TimeoutExpired:
        return Finding("ptrace", "warn", "py-spy gave no answer within 5 s: a hang has no stacks")
    finally:
        target.kill()
        target.communicate()
    if done.returncode == 0:
        return Finding("ptrace", "ok", "py-spy reads the stacks of our own processes")
    reason = (done.stderr.strip().splitlines() or ["no output"])[0]
    scope = _read("/proc/sys/kernel/yama/ptrace_scope") or "absent"
    return Finding(
        "ptrace",
        "warn",
        f"py-spy cannot read our own processes ({reason}; yama scope {scope}): a hang has no stacks",
        "sudo sysctl kernel.yama.ptrace_scope=0, or docker run --cap-add SYS_PTRACE",
    )


def receive_stamps() -> Finding:
    """Whether the kernel stamps what is received on loopback: the client's clock depends on it."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        with socket.create_connection(listener.getsockname()) as sender:
            receiver, _ = listener.accept()
            with receiver:
                try:
                    receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                except OSError as error:
                    return _no_stamps(f"the kernel refuses SO_TIMESTAMPNS: {error.strerror}")
                receiver.settimeout(2)
                return _judge_stamps(sender, receiver)


def _judge_stamps(sender: socket.socket, receiver: socket.socket) -> Finding:
    for attempt in range(_STAMP_ATTEMPTS):
        sender.sendall(b"x")
        _, ancillary, _, _ = receiver.recvmsg(1, 128)
        now = time.time()
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) >= 16:
                seconds, nanoseconds = struct.unpack("qq", data[:16])
                lag_s = now - seconds - nanoseconds / 1e9
                if abs(lag_s) >= 1:
                    return _no_stamps(f"a stamp is {lag_s:.1f} s off the clock")
                unstamped = f", the first {attempt} reads had none" if attempt else ""
                seen = f"SO_TIMESTAMPNS works on loopback, lag {lag_s * 1e6:.0f} us{unstamped}"
                return Finding("receive stamps", "ok", seen)
        # The kernel begins to stamp a little after the first socket has asked for it.
        time.sleep(_STAMP_WAIT_S)
    return _no_stamps(f"none of {_STAMP_ATTEMPTS} received bytes had a stamp")


def steal() -> Finding:
    """CPU time taken by the hypervisor, over a third of a second."""
    before = contention.steal_s()
    time.sleep(_STEAL_SAMPLE_S)
    after = contention.steal_s()
    if before is None or after is None:
        return Finding("steal", "absent", "/proc/stat does not report it")
    share = (after - before) / (_STEAL_SAMPLE_S * (os.cpu_count() or 1))
    seen = f"{share * 100:.1f} % of CPU time over {_STEAL_SAMPLE_S} s"
    if share < _STEAL_WARN:
        return Finding("steal", "ok", seen)
    mend = "measure when the neighbours are quiet, or on a dedicated host"
    return Finding("steal", "unfit" if share >= _STEAL_UNFIT else "warn", seen, mend)


def governor() -> Finding:
    """Frequency governors of the CPUs."""
    paths = sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor"))
    names = {_read(str(path)) or "unreadable" for path in paths}
    if not names:
        return Finding("governor", "absent", "no cpufreq: a virtual machine, or the firmware decides")
    if names == {"performance"}:
        return Finding("governor", "ok", "performance on every CPU")
    return Finding("governor", "warn", ", ".join(sorted(names)), "sudo cpupower frequency-set -g performance")


def cpu_speed() -> Finding:
    """Whether CPUs do the same work equally quickly: a neighbour on a physical core halves it, and no counter tells."""
    found = sorted(cpu_speeds.scan(os.sched_getaffinity(0)).values())
    if len(found) < _SPEED_CPUS:
        return Finding("cpu speed", "absent", f"{len(found)} CPUs: too few to tell a slow one by the others")
    quick = found[len(found) // 10]
    slow = [value / quick for value in found if value > _SPEED_SLOW * quick]
    if not slow:
        return Finding("cpu speed", "ok", f"the {len(found)} CPUs are alike")
    seen = f"{len(slow)} of {len(found)} CPUs took {median(slow):.1f} x as long as the quickest over the same work"
    if len(slow) < _SPEED_SHARE * len(found):
        return Finding("cpu speed", "ok", seen)
    mend = "decide with a model whose step the GPU bounds (--model pair-8b), or on a host of your own"
    return Finding("cpu speed", "warn", f"{seen}: neighbours on their cores", mend)


def load() -> Finding:
    """Load average against the number of CPUs that this process may use."""
    cpus = len(os.sched_getaffinity(0))
    average = os.getloadavg()[0]
    seen = f"{average:.1f} over the last minute on {cpus} CPUs"
    if average <= cpus * 0.5:
        return Finding("load", "ok", seen)
    return Finding(
        "load", "warn", seen, "stop what else is running: ps -eo pid,pcpu,comm --sort=-pcpu | head"
    )


def free_port() -> Finding:
    """Whether a TCP port can be had on loopback."""
    try:
        port = ports.free_port()
    except (OSError, PortTaken) as error:
        return Finding("port", "unfit", f"no TCP port can be bound on loopback: {error}", "ip link set lo up")
    return Finding("port", "ok", f"a TCP port can be bound on loopback ({port})")


def disk(folder: Path) -> Finding:
    """Room where results and logs go."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free_gib = shutil.disk_usage(existing).free / GIB
    seen = f"{free_gib:.1f} GiB free in {existing}"
    if not os.access(existing, os.W_OK):
        return Finding("disk", "unfit", f"{existing} cannot be written to", f"chown or chmod {existing}")
    if free_gib < 0.1:
        return Finding("disk", "unfit", seen, f"make room: du -xh {existing} | sort -h | tail")
    if free_gib < DISK_LEAST_GIB:
        return Finding(
            "disk", "warn", f"{seen}, under {DISK_LEAST_GIB} GiB", f"du -xh {existing} | sort -h | tail"
        )
    return Finding("disk", "ok", seen)


def shared_memory() -> Finding:
    """Size of /dev/shm, over which NCCL and the engine's processes talk."""
    if not Path("/dev/shm").is_dir():
        return Finding("/dev/shm", "absent", "there is none", "docker run --shm-size 16g")
    free_gib = shutil.disk_usage("/dev/shm").free / GIB
    seen = f"{free_gib:.1f} GiB free"
    if free_gib < SHM_LEAST_GIB:
        return Finding(
            "/dev/shm", "warn", f"{seen}: NCCL may fail", "docker run --shm-size 16g, or --ipc host"
        )
    return Finding("/dev/shm", "ok", seen)


def limits() -> list[Finding]:
    """Limits of open files and locked memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = Finding("ulimit -n", "ok", f"{soft} open files (hard limit {hard})")
    if hard < FILES_LEAST and hard != resource.RLIM_INFINITY:
        seen = f"{soft} open files, hard limit {hard}; SGLang asks for {FILES_LEAST}"
        files = Finding(
            "ulimit -n", "warn", seen, f"ulimit -Hn {FILES_LEAST}, or LimitNOFILE= in the service"
        )
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    if locked == resource.RLIM_INFINITY or locked >= GIB or os.geteuid() == 0:
        return [files, Finding("ulimit -l", "ok", "memory can be locked")]
    seen = f"at most {locked >> 20} MiB of memory can be locked; NCCL over InfiniBand needs more"
    return [files, Finding("ulimit -l", "warn", seen, "ulimit -l unlimited")]


def _no_stamps(why: str) -> Finding:
    return Finding(
        "receive stamps",
        "warn",
        f"{why}: times are taken after the read, with more lag",
        "use a Linux kernel >= 5",
    )


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
