"""Who gave a worker its variables, and which libraries it has really loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokgate.config.engine import Engine
from tokgate.config.profiles import Profile
from tokgate.host import proc
from tokgate.server.libraries import libraries, version_of
from tokgate.server.spec import LaunchSpec
from tokgate.server.truth import environments, variables

WORKERS = ("sglang::scheduler_TP0 (11)", "sglang::scheduler_TP1 (12)")
SHELL = {"NCCL_DEBUG": "WARN", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "NCCL_ALGO": "Ring", "PATH": "/bin"}


def spec(tmp_path: Path) -> LaunchSpec:
    engine = Engine(name="gpu", kind="gpu", version="0.5.15.post1", env={"HF_HUB_OFFLINE": "1"})
    profile = Profile(name="tp2", tp=2, env={"NCCL_PROTO": "LL"})
    return LaunchSpec(
        profile=profile,
        engine=engine,
        argv=("python",),
        env={**engine.env, **profile.env, "SGLANG_PORT": "1"},
        host="127.0.0.1",
        port=1,
        log_path=tmp_path / "log",
        forensics_dir=tmp_path,
    )


def told(tmp_path: Path, *own: dict[str, str], **shell: str) -> list[str]:
    found = {"python (10)": {"NCCL_DEBUG": "not a worker"}, **dict(zip(WORKERS, own, strict=True))}
    return [
        f"{item}{' on ' + '+'.join(item.workers) if item.workers else ''}"
        for item in variables(found, spec(tmp_path), {**SHELL, **shell})
    ]


def test_who_gave_each_variable(tmp_path: Path) -> None:
    have = {
        "NCCL_DEBUG": "WARN",
        "NCCL_PROTO": "LL",
        "NCCL_ALGO": "Ring",
        "HF_HUB_OFFLINE": "1",
        "SGLANG_PORT": "1",
        "CUDA_DEVICE_MAX_CONNECTIONS": "8",
        "NCCL_CUMEM_ENABLE": "0",
    }
    assert told(tmp_path, have, have) == [
        "CUDA_DEVICE_MAX_CONNECTIONS=8 (SGLang; shell said 1)",
        "HF_HUB_OFFLINE=1 (engine file)",
        "NCCL_ALGO=Ring (shell)",
        "NCCL_CUMEM_ENABLE=0 (SGLang)",
        "NCCL_DEBUG=WARN (shell)",
        "NCCL_PROTO=LL (profile)",
        "SGLANG_PORT=1 (tokgate)",
    ]


def test_a_profile_wins_over_the_shell(tmp_path: Path) -> None:
    have = {"NCCL_PROTO": "LL", "HF_HUB_OFFLINE": "1", "SGLANG_PORT": "1"}
    found = told(tmp_path, have, have, NCCL_PROTO="Simple")
    assert "NCCL_PROTO=LL (profile)" in found


def test_what_did_not_reach_a_rank_is_said(tmp_path: Path) -> None:
    """The founding case patched files by hand because a variable of the shell had no effect."""
    have = {"NCCL_PROTO": "LL", "HF_HUB_OFFLINE": "1", "SGLANG_PORT": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    found = told(tmp_path, {**have, "NCCL_DEBUG": "WARN"}, have)
    assert "NCCL_ALGO is missing (SGLang removed it; shell: Ring)" in found
    assert "NCCL_DEBUG=WARN (shell) on sglang::scheduler_TP0" in found
    assert "NCCL_DEBUG is missing (SGLang removed it; shell: WARN) on sglang::scheduler_TP1" in found


def test_secrets_are_told_to_be_there_not_what_they_are(tmp_path: Path) -> None:
    code = "import sys; print('up', flush=True); sys.stdin.readline()"
    shell = {"SGLANG_API_KEY": "abc", "NCCL_DEBUG": "INFO", "SGLANG_MAX_TOKENS": "7"}
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **shell},
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "up\n"
        process = proc.read(child.pid)
        assert process is not None
        found = environments([process])
    finally:
        child.communicate("\n", timeout=10)
    told = [str(item) for item in variables(found, spec(tmp_path), shell)]
    assert "SGLANG_API_KEY=(hidden) (shell)" in told and "abc" not in str(found)
    assert "SGLANG_MAX_TOKENS=7 (shell)" in told


def test_environment_and_libraries_of_a_real_process(tmp_path: Path) -> None:
    """A process that maps a library of a made-up distribution; one that maps none is left out."""
    site = tmp_path / "site-packages"
    (site / "nvidia" / "nccl" / "lib").mkdir(parents=True)
    (site / "nvidia_nccl_cu13-2.28.3.dist-info").mkdir()
    library = site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    library.write_bytes(b"\x7fELF" + bytes(8192))
    code = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ);"
        "print(m[:1] and 'mapped', flush=True); sys.stdin.readline()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(library)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NCCL_DEBUG": "INFO"},
    )
    try:
        assert child.stdout is not None and child.stdout.readline() == "mapped\n"
        process = proc.read(child.pid)
        assert process is not None
        (found,) = libraries([process]).values()
        assert found == {"NCCL": "2.28.3"}
        (own,) = environments([process]).values()
        assert own["NCCL_DEBUG"] == "INFO"
    finally:
        child.communicate("\n", timeout=10)
    own_process = proc.read(os.getpid())
    assert own_process is not None and "NCCL" not in str(libraries([own_process]))


@pytest.mark.parametrize(
    ("name", "real", "version"),
    [("libnccl.so.2", "libnccl.so.2.27.5", "2.27.5"), ("libnccl.so", "libnccl.so", None)],
)
def test_a_library_of_no_distribution(tmp_path: Path, name: str, real: str, version: str | None) -> None:
    file = tmp_path / real
    file.touch()
    if name != real:
        (tmp_path / name).symlink_to(file)
    # What is not known is said by its path.
    assert version_of(tmp_path / name, "nvidia_nccl_cu*") == (version or str(file))
