"""An image registry of a test's own, on loopback (where daemons need no TLS), whose layer waits until it is told."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _layer(name: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        data = name.encode()
        entry = tarfile.TarInfo("made-for")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


class Registry:
    """Has one image, `reference`. `release` lets its layer be downloaded; `login` is demanded of everybody."""

    def __init__(self, name: str, login: tuple[str, str] | None = None) -> None:
        self._login = None if login is None else ":".join(login)
        self.logins: set[str] = set()
        """Accepted ones, as they came."""
        self.manifests = 0
        self.release = threading.Event()
        self.asked = threading.Event()
        tar = _layer(name)
        layer = gzip.compress(tar)
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Cmd": ["/made-for"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(tar)]},
            }
        ).encode()
        described = {"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip", "size": len(layer)}
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(config),
                "digest": _digest(config),
            },
            "layers": [{**described, "digest": _digest(layer)}],
        }
        self._layer = _digest(layer)
        self._manifest = json.dumps(manifest).encode()
        self._blobs = {_digest(data): data for data in (layer, config)}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.reference = f"127.0.0.1:{self._server.server_port}/{name}:1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Content type and body; None: not here."""
        if path == "/v2/":
            return "application/json", b"{}"
        kind, _, name = path.rpartition("/")
        if kind.endswith("/manifests") and name in ("1", _digest(self._manifest)):
            self.manifests += 1
            return MANIFEST, self._manifest
        if name == self._layer:
            self.asked.set()
            self.release.wait(60)
        data = self._blobs.get(name)
        return None if data is None else ("application/octet-stream", data)

    def admits(self, header: str) -> bool:
        """Whether who sends this header of authorization is let in."""
        if self._login is None:
            return True
        given = base64.b64decode(header.removeprefix("Basic ")).decode()
        if given == self._login:
            self.logins.add(given)
        return given == self._login

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not registry.admits(self.headers.get("Authorization", "")):
                    self._demand()
                    return
                found = registry.answer(self.path)
                kind, body = found or ("application/json", b'{"errors": []}')
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Docker-Content-Digest", _digest(body))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def _demand(self) -> None:
                body = b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}'
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="private"')
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET  # noqa: N815 - the name that the base class calls

            def log_message(self, *_: object) -> None:
                """Quiet."""

        return Handler
