"""Servers of every kind of URL that run on this machine, each filled with the files of a folder.

s3     moto (pip install moto flask flask-cors), in this process
gs     moto too, whose XML API is the one that obstore reads Google's storage by: there is no
       server of Google's API that gives ETags and lists as Google does, and that pip installs
az     azurite, Microsoft's own (npm install azurite): its azurite-blob on the PATH, or named by
       FASTLOAD_AZURITE
https  a web server of ours, with a certificate made for it (pip install cryptography)
hf     a server of ours that answers as the Hub does (hub_server.py)
ftp    pyftpdlib (pip install pyftpdlib): an fsspec URL that is not in memory
"""

from __future__ import annotations

import abc
import base64
import contextlib
import dataclasses
import datetime
import email.utils
import hashlib
import hmac
import importlib.util
import ipaddress
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hub_server import HubServer
from object_server import ObjectServer

NAMES = ("s3", "gs", "az", "https", "hf", "ftp")
_SECRET = "hunter22hunter22"


@dataclasses.dataclass(kw_only=True)
class Cloud(abc.ABC):
    """One of them.

    Attributes:
        url: of the folder.
        options: ``storage_options`` that find the server.
        wrong: the same, with credentials that it refuses.
        wrong_url: of the folder, with credentials that it refuses; "": ``wrong`` has them.
        secret: what is wrong in them.
        lists: folders and patterns are found.
        refuses_changed: what is read of an object that was replaced is an error.
    """

    url: str
    options: dict[str, Any]
    wrong: dict[str, Any]
    wrong_url: str = ""
    secret: str = _SECRET
    lists: bool = True
    refuses_changed: bool = True

    @abc.abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Make or replace a file."""

    def environment(self) -> dict[str, str]:
        """What finds the server without options."""
        return {}

    @contextlib.contextmanager
    def strict(self) -> Iterator[None]:
        """Within it credentials are looked at; most servers always do."""
        yield

    @property
    def key(self) -> str:
        """The path of the folder in its bucket."""
        return "some/folder"


class _S3(Cloud):
    client: Any
    endpoint: str

    def put(self, name: str, data: bytes) -> None:
        self.client.put_object(Bucket="bucket", Key=f"{self.key}/{name}", Body=data)

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test-secret",
            "AWS_REGION": "us-east-1",
        }

    @contextlib.contextmanager
    def strict(self) -> Iterator[None]:
        def check_after(count: str) -> None:
            url = f"{self.endpoint}/moto-api/reset-auth"
            headers = {"Content-Type": "text/plain"}
            urllib.request.urlopen(urllib.request.Request(url, count.encode(), headers))

        check_after("0")
        try:
            yield
        finally:
            check_after("inf")


class _Google(_S3):
    def environment(self) -> dict[str, str]:
        return {"GOOGLE_BASE_URL": self.endpoint, "GOOGLE_BEARER_TOKEN": "test"}

    @contextlib.contextmanager
    def strict(self) -> Iterator[None]:
        yield  # what is wrong is found before a request


@contextlib.contextmanager
def _moto(scheme: str) -> Iterator[Cloud]:
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    server = pytest.importorskip("moto.server", reason="moto is not installed").ThreadedMotoServer(
        "127.0.0.1", port=0, verbose=False
    )
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        if scheme == "s3":
            keys = {"access_key_id": "test", "region": "us-east-1"}
            options = {"endpoint": endpoint, "secret_access_key": "test-secret", **keys}
            wrong = {**options, "secret_access_key": _SECRET}
            made: _S3 = _S3(url="s3://bucket/some/folder", options=options, wrong=wrong)
        else:
            options = {"base_url": endpoint, "bearer_token": "test"}
            wrong = {"base_url": endpoint, "service_account_key": _SECRET}
            made = _Google(url="gs://bucket/some/folder", options=options, wrong=wrong)
        made.endpoint = endpoint
        made.client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test-secret",
        )
        made.client.create_bucket(Bucket="bucket")
        yield made
    finally:
        server.stop()


class _Azure(Cloud):
    # The account that every azurite has, as its documentation says.
    account = "devstoreaccount1"
    password = (
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    )

    def put(self, name: str, data: bytes) -> None:
        import obstore
        from obstore.store import from_url

        client: Any = {"allow_http": True}
        store: Any = from_url("az://bucket", client_options=client, **self.options)
        obstore.put(store, f"{self.key}/{name}", data)

    def environment(self) -> dict[str, str]:
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.password,
            "AZURE_STORAGE_ENDPOINT": self.options["endpoint"],
        }

    def make_container(self) -> None:
        """Which obstore cannot: https://learn.microsoft.com/rest/api/storageservices."""
        date = email.utils.formatdate(usegmt=True)
        headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
        named = "".join(f"{name}:{value}\n" for name, value in headers.items())
        empty = "\n" * 12
        text = f"PUT{empty}{named}/{self.account}/{self.account}/bucket\nrestype:container"
        digest = hmac.new(base64.b64decode(self.password), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"
        url = f"{self.options['endpoint']}/bucket?restype=container"
        urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers))


@contextlib.contextmanager
def _azurite(folder: Path) -> Iterator[Cloud]:
    program = os.environ.get("FASTLOAD_AZURITE") or shutil.which("azurite-blob")
    if program is None:
        pytest.skip("no azurite: npm install azurite, and set FASTLOAD_AZURITE to its azurite-blob")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            *(program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"),
            *("--location", str(folder), "--skipApiVersionCheck", "--disableTelemetry"),
        ],
        stdout=subprocess.DEVNULL,
    )
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert process.poll() is None, "azurite did not start"
            time.sleep(0.05)
        options = {
            "account_name": _Azure.account,
            "account_key": _Azure.password,
            "endpoint": f"http://127.0.0.1:{port}/{_Azure.account}",
        }
        wrong = {**options, "account_key": base64.b64encode(_SECRET.encode()).decode()}
        made = _Azure(
            url="az://bucket/some/folder", options=options, wrong=wrong, secret=wrong["account_key"]
        )
        made.make_container()
        yield made
    finally:
        process.terminate()
        process.wait()


class _Web(Cloud):
    server: ObjectServer
    certificate: Path

    def put(self, name: str, data: bytes) -> None:
        path = self.server.folder / self.key / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def environment(self) -> dict[str, str]:
        return {"SSL_CERT_FILE": str(self.certificate)}

    @contextlib.contextmanager
    def strict(self) -> Iterator[None]:
        self.server.authorization = "Bearer what-the-server-expects"
        try:
            yield
        finally:
            self.server.authorization = ""


@contextlib.contextmanager
def _https(folder: Path) -> Iterator[Cloud]:
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    certificate = _certified(folder / "tls.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    (folder / "served").mkdir()
    server = ObjectServer(folder / "served", context)
    try:
        client = {"root_certificate": certificate.read_text()}
        headers = {"Authorization": f"Bearer {_SECRET}"}
        made = _Web(
            url=f"{server.url}/some/folder",
            options={"client_options": client},
            wrong={"client_options": {**client, "default_headers": headers}},
            lists=False,
        )
        made.server, made.certificate = server, certificate
        yield made
    finally:
        server.close()


def _certified(path: Path) -> Path:
    """A new key, and a certificate of it for 127.0.0.1, in one file."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fastload's tests")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


class Hub(Cloud):
    server: HubServer
    files: dict[str, bytes]

    def put(self, name: str, data: bytes) -> None:
        self.files[f"data/{name}"] = data
        self.server.commit("owner/name", self.files)

    def environment(self) -> dict[str, str]:
        return {"HF_ENDPOINT": self.server.url, "HF_TOKEN": self.options["token"]}


@contextlib.contextmanager
def _hub() -> Iterator[Cloud]:
    pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
    server = HubServer(token="hf_right")
    try:
        options = {"endpoint": server.url, "token": "hf_right"}
        made = Hub(
            url="hf://datasets/owner/name/data",
            options=options,
            wrong={**options, "token": _SECRET},
            refuses_changed=False,  # a commit is read on
        )
        made.server, made.files = server, {}
        yield made
    finally:
        server.close()


class _Ftp(Cloud):
    folder: Path

    def put(self, name: str, data: bytes) -> None:
        path = self.folder / self.key / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@contextlib.contextmanager
def _ftp(folder: Path) -> Iterator[Cloud]:
    if importlib.util.find_spec("pyftpdlib") is None:
        pytest.skip("pyftpdlib is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.11's of asyncore
        from pyftpdlib.authorizers import DummyAuthorizer
        from pyftpdlib.handlers import FTPHandler
        from pyftpdlib.ioloop import IOLoop
        from pyftpdlib.servers import FTPServer

    users = DummyAuthorizer()
    users.add_user("me", "right", str(folder))
    handler = type("Handler", (FTPHandler,), {"authorizer": users, "auth_failed_timeout": 0})
    server = FTPServer(("127.0.0.1", 0), handler, ioloop=IOLoop())
    ending = threading.Event()

    def serve() -> None:
        while not ending.is_set():
            server.serve_forever(timeout=0.05, blocking=False, handle_exit=False)
        server.close_all()

    thread = threading.Thread(target=serve)
    thread.start()
    host, port = server.socket.getsockname()
    try:
        made = _Ftp(
            url=f"ftp://me:right@{host}:{port}/some/folder",
            options={},
            wrong={},
            wrong_url=f"ftp://me:{_SECRET}@{host}:{port}/some/folder",
            refuses_changed=False,
        )
        made.folder = folder
        yield made
    finally:
        ending.set()
        thread.join()


@contextlib.contextmanager
def started(name: str, folder: Path) -> Iterator[Cloud]:
    """The server called ``name``, with nothing in it; skips where what it needs is absent.

    Args:
        name: one of ``NAMES``.
        folder: an empty one, for the files of those that keep them on a disk.
    """
    made = {
        "s3": lambda: _moto("s3"),
        "gs": lambda: _moto("gs"),
        "az": lambda: _azurite(folder),
        "https": lambda: _https(folder),
        "hf": _hub,
        "ftp": lambda: _ftp(folder),
    }
    with made[name]() as cloud:
        yield cloud
