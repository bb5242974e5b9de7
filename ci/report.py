"""Say what a run found where people look: the job's summary, one comment, a patch of the baselines.

Needs the newest run under --results. Where there is none (the job died before it) the comment says that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MARK = "<!-- tokgate -->"
LINES_MAX = 58
PATCH = "baselines.patch"


def main() -> int:
    """Write all three; exit code 0 whatever the run found: the gate's own exit code says that."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--baselines", type=Path, default=Path("baselines"))
    parser.add_argument("--out", type=Path, default=Path("ci-report"))
    parser.add_argument("--title", default="gate")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    run = newest(options.results)
    patched = run is not None and write_patch(run, options.results, options.baselines, options.out / PATCH)
    text = comment(run, options.title, patched)
    (options.out / "comment.md").write_text(text, encoding="utf-8")
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as stream:
            stream.write((whole(run) or text) + "\n")
    print(f"{options.out / 'comment.md'}: {len(text.splitlines())} lines")
    return 0


def newest(results: Path) -> Path | None:
    """The newest run that has a report, or else the newest one at all; None when there is none."""
    found = (path for path in results.glob("*") if path.is_dir() and not path.is_symlink())
    # By its time alone: a bump's name begins with a word, and would sort behind every gate's.
    runs = sorted(found, key=lambda path: path.name.removeprefix("bump-"))
    told = [run for run in runs if (run / "report.md").is_file()]
    return (told or runs)[-1] if runs else None


def whole(run: Path | None) -> str | None:
    """The run's whole report."""
    path = run / "report.md" if run else None
    return path.read_text(encoding="utf-8") if path and path.is_file() else None


def comment(run: Path | None, title: str, patched: bool) -> str:
    """The comment: the report cut to what people read, the mark by which it is found again first."""
    lines = [MARK, f"### tokgate: {title}", ""]
    report = whole(run)
    if run is None:
        lines += ["No run was stored: the job ended before the gate began. The job's log says why."]
    elif report is None:
        lines += [f"Run `{run.name}` has no report: it was killed. Its verdicts so far are in the artifact."]
    else:
        # A heading would be larger than the comment's own.
        body = [line for line in report.splitlines() if not line.startswith(("# ", "<!--"))]
        room = LINES_MAX - len(lines) - 3
        lines += body[:room]
        if len(body) > room:
            if sum(line.startswith("```") for line in body[:room]) % 2:
                lines.append("```")
            lines.append(f"... and {len(body) - room} lines more: `report.md` in the artifact.")
    if patched:
        lines += ["", f"`{PATCH}` in the artifact accepts these figures: `git apply {PATCH}`."]
    return "\n".join(lines) + "\n"


def write_patch(run: Path, results: Path, baselines: Path, out: Path) -> bool:
    """What ``tokgate accept`` would write, as a patch of the repository; nothing here is changed.

    Returns:
        Whether there is a patch: not for a run that cannot be accepted, such as one with a hang.
    """
    if not (run / "run.json").is_file() or "status" not in json.loads((run / "run.json").read_text()):
        return False
    with tempfile.TemporaryDirectory(prefix="tokgate-patch-") as scratch:
        copy = Path(scratch, "baselines")
        copy.mkdir()
        if baselines.is_dir():
            shutil.copytree(baselines, copy, dirs_exist_ok=True)
        git = ["git", "-C", scratch, "-c", "user.name=tokgate", "-c", "user.email=tokgate@localhost"]
        for words in (
            ["init", "--quiet"],
            ["add", "--all"],
            ["commit", "--quiet", "--allow-empty", "-m", "b"],
        ):
            subprocess.run([*git, *words], check=True, stdout=subprocess.DEVNULL)
        reason = f"run {os.environ.get('GITHUB_RUN_ID', 'by hand')} of the CI"
        command = [sys.executable, "-m", "tokgate", "accept", run.name, "--reason", reason]
        done = subprocess.run(
            [*command, "--results", str(results), "--baselines", str(copy)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            print(f"no baseline patch: {done.stderr.strip() or done.stdout.strip()}")
            return False
        subprocess.run([*git, "add", "--all"], check=True)
        patch = subprocess.run([*git, "diff", "--cached", "--binary"], check=True, capture_output=True).stdout
    if not patch:
        return False
    out.write_bytes(patch)
    return True


if __name__ == "__main__":
    sys.exit(main())
