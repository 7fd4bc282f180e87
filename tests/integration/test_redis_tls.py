"""`rediss://`: all clients of control plane and cell verify the certificate of Redis.

The server is a real Redis behind a TLS endpoint of the test, because not every build of Redis has
TLS. The certificates are made by the test.
"""

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
import redis
from celery import Celery
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from django.conf import settings
from kombu.exceptions import OperationalError

from controlplane.config.celery import app as control_app
from controlplane.config.env import load_settings
from controlplane.contract.wire import logins
from controlplane.contract.wire.queues import cell_queue
from controlplane.outbox.transport import RedisTransport
from workers.config import _broker_url
from workers.service.bus import RedisBrokerClient
from workers.service.celery import make_app
from workers.service.consumer_watchdog import ConsumerWatch


def make_certificate(folder: Path) -> None:
    """Write a self-signed certificate for 127.0.0.1 and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "redis")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    folder.mkdir()
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


class TlsEndpoint:
    """Accepts TLS connections and forwards their content to a server without TLS."""

    def __init__(self, folder: Path, target: tuple[str, int]) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with suppress(OSError):
            secured = self._context.wrap_socket(plain, server_side=True)
            onward = socket.create_connection(self._target)
            threading.Thread(target=self._copy, args=(onward, secured), daemon=True).start()
            self._copy(secured, onward)

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError), source, sink:
            while piece := source.recv(65_536):
                sink.sendall(piece)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[str]:
    """The address of Redis by TLS, without the certificate that it needs."""
    make_certificate(tmp_path / "own")
    make_certificate(tmp_path / "other")
    parts = urlsplit(settings.CELERY_BROKER_URL)
    endpoint = TlsEndpoint(tmp_path / "own", (parts.hostname or "", parts.port or 6379))
    login = f"{parts.username or ''}:{parts.password}@"
    yield f"rediss://{login}127.0.0.1:{endpoint.port}{parts.path}"
    endpoint.close()


def trusting(url: str, path: Path) -> str:
    """The address as docs/cells.md writes it, with the certificate at `path` as authority."""
    return f"{url}?ssl_cert_reqs=required&ssl_ca_certs={path / 'ca.pem'}"


def test_clients_of_redis_use_a_verified_connection(secured: str, tmp_path: Path) -> None:
    url, queue = trusting(secured, tmp_path / "own"), cell_queue("cell-1", uuid4().hex)
    RedisTransport(url).push([(queue, "one")])
    RedisBrokerClient(url).push([(queue, "two")])
    with redis.Redis.from_url(settings.CELERY_BROKER_URL) as client:
        assert client.lrange(queue, 0, -1) == [b"two", b"one"]
        watch = ConsumerWatch(url, [queue], lambda: None)
        assert watch.check(0.0) is False
        assert watch.check(60.0) is True  # it has read the queue
        client.delete(queue)


@pytest.mark.parametrize("authority", ["other", None])
def test_server_with_another_certificate_is_refused(
    secured: str, tmp_path: Path, authority: str | None
) -> None:
    url = trusting(secured, tmp_path / authority) if authority else secured
    queue = cell_queue("cell-1", uuid4().hex)
    with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        RedisTransport(url).push([(queue, "one")])
    RedisBrokerClient(url).push([(queue, "two")])  # logs the loss
    with redis.Redis.from_url(settings.CELERY_BROKER_URL) as client:
        assert not client.exists(queue)


def can_connect(app: Celery) -> bool:
    with app.connection_for_read() as connection:
        try:
            connection.ensure_connection(max_retries=1, interval_start=0)
            connection.default_channel.client.ping()
        except (OperationalError, redis.ConnectionError) as error:
            if "CERTIFICATE_VERIFY_FAILED" not in str(error):
                raise
            return False
    return True


@pytest.mark.parametrize(
    ("authority", "is_trusted"), [("own", True), ("other", False), ("", False)]
)
def test_celery_needs_a_valid_certificate(
    secured: str, tmp_path: Path, authority: str, is_trusted: bool
) -> None:
    """Also without parameters, for which Celery itself would accept any certificate."""
    url = trusting(secured, tmp_path / authority) if authority else secured
    try:
        assert can_connect(make_app(_broker_url(url), ["cell.cell-1.one"])) == is_trusted
    finally:
        control_app.set_current()
    environment = {**os.environ, "CELERY_BROKER_URL": url, "CELLRUN_SECRET_KEY": "k" * 32}
    assert load_settings(environment).broker_url == _broker_url(url)


def test_celery_uses_the_checked_address_of_the_settings() -> None:
    """Without these two settings it would prefer the variable CELERY_BROKER_URL."""
    assert control_app.conf.broker_read_url == settings.CELLRUN.broker_url
    assert control_app.conf.broker_write_url == settings.CELLRUN.broker_url


def test_verification_can_be_disabled_explicitly() -> None:
    url = "rediss://host/0?ssl_cert_reqs=none"
    assert logins.verified(url) == url
    assert logins.verified("redis://host/0") == "redis://host/0"
    assert logins.verified("rediss://host/0?a=b") == "rediss://host/0?a=b&ssl_cert_reqs=required"


def test_login_of_a_cell_keeps_the_parameters_of_tls() -> None:
    url = "rediss://:of-all@host:6380/2?ssl_cert_reqs=required&ssl_ca_certs=/ca.pem"
    found = logins.with_login(url, "cell.a", b"k" * 32)
    password = logins.password(b"k" * 32)
    assert found == (
        f"rediss://cell.a:{password}@host:6380/2?ssl_cert_reqs=required&ssl_ca_certs=/ca.pem"
    )
