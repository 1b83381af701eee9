"""A fake Hugging Face hub on the loopback, as far as the hub's own client asks it for files."""
import contextlib
import hashlib
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

COMMIT = "0123456789abcdef" * 2 + "01234567"


@contextlib.contextmanager
def serve(repositories: dict[str, dict[str, bytes] | str], cache: Path, monkeypatch):
    """Send the hub's client to a fake hub, and give it an empty cache.

    `repositories` maps "OWNER/NAME" or "datasets/OWNER/NAME" to the contents of its files, or to the hub's code of an
    error such as "GatedRepo". Each has one commit, COMMIT, and one branch, main.
    """
    class Hub(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_HEAD(self):
            repository, kind, revision, name = re.match(
                r"/(?:api/)?(?:models/)?((?:datasets/)?[^/]+/[^/]+)/(resolve|tree|revision)/([^/?]+)/?([^?]*)",
                unquote(self.path)).groups()
            files = repositories.get(repository, "RepoNotFound")
            error = ""
            body = b"{}"
            if isinstance(files, str):
                error = files
            elif revision not in ("main", COMMIT):
                error = "RevisionNotFound"
            elif kind == "revision":
                body = json.dumps({"id": repository, "sha": COMMIT}).encode()
            elif kind == "tree":
                body = json.dumps([{"type": "file", "path": path, "size": len(content), "oid": "0"}
                                   for path, content in files.items()]).encode()
            elif name in files:
                body = files[name]
            else:
                error = "EntryNotFound"

            self.send_response({"": 200, "GatedRepo": 403}.get(error, 404))
            for header, value in (("X-Error-Code", error), ("X-Repo-Commit", COMMIT), ("Content-Length", len(body)),
                                  ("ETag", f'"{hashlib.sha256(body).hexdigest()}"')):
                self.send_header(header, str(value))
            self.end_headers()
            return body

        def do_GET(self):
            self.wfile.write(self.do_HEAD())

    from huggingface_hub import constants, hf_api
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, args=[.01], daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE",
                            address + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(hf_api.api, "endpoint", address)
        yield
        server.shutdown()
