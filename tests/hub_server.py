"""A server that answers what huggingface_hub asks the Hub about datasets, for tests.

    hub = HubServer(token="...")       # hub.url, as HF_ENDPOINT has it; hub.close()
    hub.commit("owner/name", {"data/train.parquet": b"..."})

It knows commits: a branch moves with ``commit``, and what it was before stays readable by its hash.
The answers are those of https://huggingface.co/docs/hub/api, as far as they are asked for.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

_API = re.compile(r"/api/datasets/([^/]+/[^/]+)(?:/(revision|tree|paths-info)/([^/]+)(?:/(.+))?)?")
_FILE = re.compile(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


class HubServer:
    """Serves the datasets that were committed to it.

    Args:
        token: what every request must bring; "": none.
    """

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.asked: list[str] = []
        self._commits: dict[str, dict[str, dict[str, bytes]]] = {}
        self._main: dict[str, str] = {}
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def commit(self, repo: str, files: dict[str, bytes]) -> str:
        """Make these all files of the branch main; return the hash of the commit."""
        commits = self._commits.setdefault(repo, {})
        sha = hashlib.sha1(f"{repo} {len(commits)}".encode()).hexdigest()
        commits[sha] = dict(files)
        self._main[repo] = sha
        return sha

    def _found(self, repo: str, revision: str | None) -> tuple[str, dict[str, bytes]] | None:
        sha = self._main.get(repo, "") if revision in (None, "main") else str(revision)
        files = self._commits.get(repo, {}).get(sha)
        return None if files is None else (sha, files)

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_POST(self) -> None:
                self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.do_GET()

            def do_GET(self) -> None:
                server.asked.append(f"{self.command} {self.path}")
                if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
                    self._refused(401, "", "Invalid credentials in Authorization header")
                    return
                path = urlsplit(self.path).path
                asked = _API.fullmatch(path)
                if asked is not None:
                    self._about(*asked.groups())
                    return
                asked = _FILE.fullmatch(path)
                if asked is None:
                    self._refused(404, "", f"no answer to {path}")
                    return
                repo, revision, name = asked.groups()
                self._content(repo, unquote(revision), unquote(name))

            def _about(self, repo: str, what: str | None, revision: str, place: str) -> None:
                found = server._found(repo, unquote(revision) if revision else None)
                if repo not in server._main:
                    self._refused(401, "RepoNotFound", "Repository not found")
                elif found is None:
                    self._refused(404, "RevisionNotFound", "Revision not found")
                elif what in (None, "revision"):
                    self._json({"id": repo, "sha": found[0], "siblings": [], "tags": []})
                elif what == "tree":
                    self._tree(found[1], unquote(place or ""))
                else:
                    wanted = [name for name in json.loads(self.body)["paths"] if name in found[1]]
                    self._json([_entry(name, found[1][name]) for name in wanted])

            def _tree(self, files: dict[str, bytes], folder: str) -> None:
                query = parse_qs(urlsplit(self.path).query)
                recursive = query.get("recursive", ["False"])[0].lower() == "true"
                begin = f"{folder}/" if folder else ""
                entries: dict[str, dict[str, Any]] = {}
                for name, data in files.items():
                    if not name.startswith(begin):
                        continue
                    parts = name[len(begin) :].split("/")
                    for depth in range(1, len(parts)):
                        if recursive or depth == 1:
                            inside = begin + "/".join(parts[:depth])
                            oid = hashlib.sha1(inside.encode()).hexdigest()
                            entries[inside] = {
                                "type": "directory", "oid": oid, "size": 0, "path": inside,
                            }  # fmt: skip
                    if recursive or len(parts) == 1:
                        entries[name] = _entry(name, data)
                if folder and not entries:
                    self._refused(404, "EntryNotFound", "Entry not found")
                else:
                    self._json(list(entries.values()))

            def _content(self, repo: str, revision: str, name: str) -> None:
                found = server._found(repo, revision)
                if found is None or name not in found[1]:
                    self._refused(404, "EntryNotFound", "Entry not found")
                    return
                data = found[1][name]
                start, stop = 0, len(data)
                ranged = self.headers.get("Range")
                if ranged is not None:
                    first, last = ranged.removeprefix("bytes=").split("-")
                    start, stop = int(first), min(int(last) + 1, len(data))
                self.send_response(200 if ranged is None else 206)
                self.send_header("ETag", f'"{_oid(data)}"')
                self.send_header("X-Repo-Commit", found[0])
                self.send_header("Accept-Ranges", "bytes")
                if ranged is not None:
                    self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
                self._end(data[start:stop])

            def _json(self, value: Any) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self._end(json.dumps(value).encode())

            def _refused(self, code: int, error: str, message: str) -> None:
                self.send_response(code)
                if error:
                    self.send_header("X-Error-Code", error)
                self.send_header("X-Error-Message", message)
                self._end(b"")

            def _end(self, body: bytes) -> None:
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        return Handler


def _oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(name: str, data: bytes) -> dict[str, Any]:
    return {"type": "file", "oid": _oid(data), "size": len(data), "path": name}
