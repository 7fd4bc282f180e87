"""A real, tiny image registry: one image, served as slowly as a test wants."""

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading

from tests.harness.web import Answer, Request, Web

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def digest_of(content: bytes) -> str:
    """The content's address."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Registry:
    """Serves `repository`:1 on `web`. Layers wait until `may_send` is set."""

    def __init__(self, web: Web, repository: str) -> None:
        self.may_send = threading.Event()
        self.may_send.set()
        layer_tar = io.BytesIO()
        with tarfile.open(fileobj=layer_tar, mode="w") as tar:
            entry = tarfile.TarInfo("noise")
            entry.size = 300_000
            tar.addfile(entry, io.BytesIO(os.urandom(entry.size)))
        layer = gzip.compress(layer_tar.getvalue())
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [digest_of(layer_tar.getvalue())]},
            }
        ).encode()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _described(CONFIG, config),
            "layers": [_described(LAYER, layer)],
        }
        self._manifest = json.dumps(manifest).encode()
        self._blobs = {digest_of(content): content for content in (config, layer)}
        self._base = f"/v2/{repository}"
        self.layer_digest = digest_of(layer)
        self.image = f"{web.address}/{repository}:1"
        web.route = self.answer

    def answer(self, request: Request) -> Answer:
        """The registry protocol, as far as a pull needs it."""
        if request.path == "/v2/":
            return Answer(200, b"{}")
        kind, _, name = request.path.removeprefix(f"{self._base}/").partition("/")
        if kind == "manifests" and name in ("1", digest_of(self._manifest)):
            headers = {
                "Content-Type": MANIFEST,
                "Docker-Content-Digest": digest_of(self._manifest),
            }
            return Answer(200, self._manifest, headers)
        if kind == "blobs" and name in self._blobs:
            if name == self.layer_digest and request.method == "GET":
                self.may_send.wait(60)
            return Answer(200, self._blobs[name])
        errors = {"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}
        return Answer(404, json.dumps(errors).encode(), {"Content-Type": "application/json"})


def _described(media_type: str, content: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "size": len(content), "digest": digest_of(content)}
