"""Post a comment on a pull request, or update the one that is there. Needs Python's standard library only.

Environment, as GitHub Actions sets it: GITHUB_API_URL, GITHUB_REPOSITORY, GITHUB_TOKEN, and PR_NUMBER.
The comment is known by its first line, so that there is one, however often the gate runs.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

MARK = "<!-- tokgate -->"
PAGE = 100
SIZE_MAX = 65_000  # GitHub refuses a body of more than 65 536 characters
TIMEOUT_S = 30.0


class Refused(Exception):
    """GitHub did not take it."""


def main(arguments: list[str]) -> int:
    """Post the file that is named."""
    if len(arguments) != 1:
        print("usage: python3 ci/comment.py COMMENT.md", file=sys.stderr)
        return 2
    missing = [
        name for name in ("GITHUB_REPOSITORY", "GITHUB_TOKEN", "PR_NUMBER") if not os.environ.get(name)
    ]
    if missing:
        print(f"comment: not set: {', '.join(missing)}", file=sys.stderr)
        return 2
    try:
        text = Path(arguments[0]).read_text(encoding="utf-8")
    except OSError as error:
        print(f"comment: {arguments[0]}: {error.strerror}", file=sys.stderr)
        return 2
    try:
        print(post(text[:SIZE_MAX]))
    except Refused as error:
        print(f"comment: {error}", file=sys.stderr)
        return 3
    return 0


def post(text: str) -> str:
    """Update our comment, or else write it.

    Returns:
        What was done, and the comment's address.

    Raises:
        Refused: GitHub answered with an error, or not at all.
    """
    issue = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    body = text if text.startswith(MARK) else f"{MARK}\n{text}"
    number = _ours(f"{issue}/{int(os.environ['PR_NUMBER'])}/comments")
    if number is not None:
        answer = _call("PATCH", f"{issue}/comments/{number}", {"body": body})
        return f"updated {answer.get('html_url', number)}"
    answer = _call("POST", f"{issue}/{int(os.environ['PR_NUMBER'])}/comments", {"body": body})
    return f"wrote {answer.get('html_url', '')}"


def _ours(path: str) -> int | None:
    """Number of the comment that begins with the mark and that this token wrote: a bot's."""
    page = 1
    while True:
        found = _call("GET", f"{path}?per_page={PAGE}&page={page}")
        for item in found:
            # Anybody can write the mark; only a bot's comment is overwritten.
            if item.get("body", "").startswith(MARK) and item.get("user", {}).get("type") == "Bot":
                return int(item["id"])
        if len(found) < PAGE:
            return None
        page += 1


def _call(method: str, path: str, payload: object | None = None) -> Any:
    url = os.environ.get("GITHUB_API_URL", "https://api.github.com") + path
    request = urllib.request.Request(
        url,
        method=method,
        data=None if payload is None else json.dumps(payload).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        detail = error.read().decode(errors="replace")[:200]
        raise Refused(f"{method} {path}: status {error.code}: {detail}") from error
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise Refused(f"{method} {path}: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
