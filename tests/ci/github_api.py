"""As much of GitHub's API for issue comments as ci/comment.py uses."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Api(ThreadingHTTPServer):
    """A server on a free port; keeps what it was sent."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.comments: list[dict[str, Any]] = []
        self.seen: list[tuple[str, str, str]] = []
        self.status = 200


class Handler(BaseHTTPRequestHandler):
    server: Api

    def log_message(self, format: str, *args: object) -> None:
        """Not on the test's output."""

    def do_GET(self) -> None:
        query = dict(pair.split("=") for pair in self.path.partition("?")[2].split("&"))
        size, page = int(query["per_page"]), int(query["page"])
        self._answer(self.server.comments[size * (page - 1) : size * page])

    def do_POST(self) -> None:
        comment = {**self._body(), "id": len(self.server.comments) + 1, "user": {"type": "Bot"}}
        self.server.comments.append(comment)
        self._answer(comment)

    def do_PATCH(self) -> None:
        comment = self.server.comments[int(self.path.rpartition("/")[2]) - 1]
        comment.update(self._body())
        self._answer(comment)

    def _body(self) -> dict[str, Any]:
        found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(found, dict)
        return found

    def _answer(self, data: object) -> None:
        authorization = str(self.headers["Authorization"])
        self.server.seen.append((self.command, self.path.partition("?")[0], authorization))
        content = json.dumps(data).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
