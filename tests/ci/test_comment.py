"""ci/comment.py: one comment on a pull request, written once and updated from then on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ci.github_api import Api
from tests.ci.workflows import ROOT


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def post(api: Api, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """The comment job's script, isolated: it runs where nothing is installed."""
    told = {
        "GITHUB_API_URL": f"http://127.0.0.1:{api.server_address[1]}",
        "GITHUB_REPOSITORY": "owner/name",
        "GITHUB_TOKEN": "s3cret",
        "PR_NUMBER": "7",
        **env,
    }
    script = [sys.executable, "-I", "-S", str(ROOT / "ci" / "comment.py"), str(path)]
    return subprocess.run(script, env=told, capture_output=True, text=True, check=False)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "comment.md"
    path.write_text("<!-- tokgate -->\nfirst\n")
    return path


def test_there_is_one_comment_however_often_the_gate_runs(api: Api, text: Path) -> None:
    # More than a page of others, one of which a person began with our mark.
    api.comments = [{"id": n + 1, "body": "hello", "user": {"type": "User"}} for n in range(150)]
    api.comments[3]["body"] = "<!-- tokgate -->\nmine"
    first = post(api, text)
    assert (first.returncode, first.stdout.split()[0]) == (0, "wrote"), first.stderr
    text.write_text("<!-- tokgate -->\nsecond\n")
    second = post(api, text)
    assert (second.returncode, second.stdout.split()[0]) == (0, "updated"), second.stderr
    assert len(api.comments) == 151
    assert api.comments[150]["body"] == "<!-- tokgate -->\nsecond\n"
    assert api.comments[3]["body"] == "<!-- tokgate -->\nmine"
    assert {authorization for _, _, authorization in api.seen} == {"Bearer s3cret"}
    assert ("POST", "/repos/owner/name/issues/7/comments", "Bearer s3cret") in api.seen
    assert ("PATCH", "/repos/owner/name/issues/comments/151", "Bearer s3cret") in api.seen


def test_comment_gets_its_mark_and_is_not_too_long(api: Api, text: Path) -> None:
    text.write_text("x" * 100_000)
    assert post(api, text).returncode == 0
    assert api.comments[0]["body"].startswith("<!-- tokgate -->\nxxx")
    assert len(api.comments[0]["body"]) < 65_536


def test_refusal_is_told_without_the_token(api: Api, text: Path) -> None:
    api.status = 403
    done = post(api, text)
    assert done.returncode == 3
    assert "status 403" in done.stderr
    assert "s3cret" not in done.stdout + done.stderr and "Traceback" not in done.stderr


def test_api_that_does_not_answer(api: Api, text: Path) -> None:
    done = post(api, text, GITHUB_API_URL="http://127.0.0.1:9")
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)


def test_what_is_not_set_is_named(api: Api, text: Path) -> None:
    done = post(api, text, PR_NUMBER="")
    assert (done.returncode, done.stderr) == (2, "comment: not set: PR_NUMBER\n")
