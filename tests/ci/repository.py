"""A repository with tokgate's files, a base branch and a change on top of it; what gate.yml decides of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.ci.workflows import FOLDER, ROOT, Job, workflow


def git(folder: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def make(folder: Path) -> Path:
    """The working tree as a repository of its own: a base branch and, on top of it, a change."""
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "-z")
    for name in filter(None, listed.split("\0")):
        if name.startswith(("tests/", "docs/")) or not (ROOT / name).is_file():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "base")
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    (folder / "README.md").write_text("changed\n")
    git(folder, "commit", "--quiet", "--all", "--message", "change")
    return folder


def pin(clone: Path, version: str) -> None:
    (clone / "ci" / "sglang.pin").write_text(f"{version}\n")
    git(clone, "commit", "--quiet", "--all", "--message", f"SGLang {version}")


def decided(clone: Path, env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Outputs of gate.yml's first job."""
    job = Job(clone, env, tmp_path)
    assert job.run(workflow(FOLDER / "gate.yml")["jobs"]["decide"], {}), job.said
    return job.outputs["decide"]
