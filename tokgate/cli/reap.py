"""``tokgate reap``: end what a killed tokgate left running."""

from __future__ import annotations

import shutil
from typing import Annotated

import typer

from tokgate.gate.words import count
from tokgate.host import gpu, lock, marker, proc
from tokgate.load import scratch

app = typer.Typer(add_completion=False)

_NVML_S = 5.0


@app.command()
def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list only")] = False,
) -> None:
    """Kill processes of launches whose tokgate is dead, and remove the locks and measurement folders it held.

    Only processes that carry a tokgate's mark in their environment are touched, and only when that
    tokgate is dead; those of one in another PID namespace (a container) are listed and left alone.
    Exit code 0; 3 when something could not be killed.
    """
    marked = marker.find_all()
    dead = [item for item in marked if item.owner == "dead"]
    resident = {item.process.pid: proc.rss_bytes(item.process.pid) for item in dead}
    nobody: dict[int, int | None] = {}
    on_gpu = gpu.within(_NVML_S, _gpu_mib, nobody)
    for item in dead:
        process = item.process
        rss = resident[process.pid]
        size = "resident MiB not known" if rss is None else f"{rss >> 20} MiB resident"
        mib = on_gpu.get(process.pid, 0)
        held = ", MiB on GPUs not known" if mib is None else f", {mib} MiB on GPUs" if mib else ""
        age = f"{proc.age_s(process):.0f} s old"
        print(f"pid {process.pid} ({proc.title(process)}): {age}, {size}{held}")
    for item in marked:
        if item.owner == "elsewhere":
            print(f"left alone: pid {item.process.pid}: its tokgate runs in another PID namespace")
    folders = scratch.left_behind()
    for folder in folders:
        print(f"{folder}: of a measurement whose tokgate is dead")
    if dry_run:
        print(
            f"{count(len(dead), 'process', 'processes')} would be killed, {count(len(folders), 'folder')} removed"
        )
        return
    for mark in {item.mark for item in dead}:
        marker.kill(mark, [item.process for item in dead if item.mark == mark])
    left = [item.process for item in dead if proc.is_same(item.process)]
    locks = lock.remove_stale()
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    gone = sum(not folder.exists() for folder in folders)
    killed = count(len(dead) - len(left), "process", "processes")
    print(f"{killed} killed, {count(len(locks), 'stale lock')} and {count(gone, 'folder')} removed")
    if left:
        print(f"still running: {', '.join(f'pid {process.pid}' for process in left)} (another user's?)")
        raise typer.Exit(3)


def _gpu_mib() -> dict[int, int | None]:
    """MiB that processes hold on all GPUs; ``None`` where NVML does not say of one of these."""
    nvml = gpu.open_nvml()
    if isinstance(nvml, str):
        return {}
    held: dict[int, int | None] = {}
    for index in range(nvml.count):
        for item in nvml.processes(index) or ():
            before = held.get(item.pid, 0)
            held[item.pid] = None if before is None or item.mib is None else before + item.mib
    return held
