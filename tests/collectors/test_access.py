"""Credentials and certificates are read from current files and never appear in messages."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from aiohttp import web
from pydantic import ValidationError

from collectors.mapping.target import Target, target_of
from collectors.net.http import HttpClient
from collectors.prometheus.client import PrometheusApi
from collectors.scrape.result import Scrape
from collectors.scrape.scraper import Scraper
from outrider.errors import CollectError, CollectReason
from outrider.wire.http_auth import Access, Tls
from service.config.access_settings import AccessSettings

AT = datetime(2026, 3, 1, tzinfo=UTC)
SECRET = "h0rse-battery"


class Certificates:
    """A certificate authority with server and client certificates, as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = trustme.CA()
        self.ca, self.cert, self.key = folder / "ca.pem", folder / "cert.pem", folder / "key.pem"
        self.authority.cert_pem.write_to_path(self.ca)
        ours = self.authority.issue_cert("outrider@example.org")
        ours.private_key_pem.write_to_path(self.key)
        self.cert.write_bytes(b"".join(part.bytes() for part in ours.cert_chain_pems))

    def server(self, name: str, *, mutual: bool) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.authority.issue_cert(name).configure_cert(context)
        if mutual:
            self.authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    @property
    def tls(self) -> Tls:
        return Tls(ca_file=self.ca, cert_file=self.cert, key_file=self.key)


@asynccontextmanager
async def serving(context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A page with the headers of its request."""

    async def page(request: web.Request) -> web.Response:
        sent = ",".join(f'{name}="{request.headers.get(name, "")}"' for name in ("Authorization", "X-Key"))
        return web.Response(text=f"a{{{sent.replace('-', '_')}}} 1\n")

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        yield f"{'https' if context else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def target(base: str, access: Access) -> Target:
    return target_of("c", {"name": "t", "adapter": "vllm", "url": f"{base}/metrics", "probe": False, "access": access})


def scraped(access: Access, context: ssl.SSLContext | None = None) -> Scrape:
    async def run() -> Scrape:
        async with serving(context) as base, Scraper() as scraper:
            return await scraper.scrape_one(target(base, access), at=AT)

    return asyncio.run(run())


def test_a_server_that_requires_a_client_certificate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    result = scraped(Access(tls=certificates.tls), certificates.server("127.0.0.1", mutual=True))
    assert result.error is None
    assert result.body is not None


@pytest.mark.parametrize(
    ("mutual", "wrong"),
    [
        (True, lambda certificates, other: Tls(ca_file=certificates.ca)),  # without our certificate
        (False, lambda certificates, other: Tls(ca_file=other.ca)),  # signed by somebody else
        (False, lambda certificates, other: None),  # the system does not know the authority
    ],
)
def test_an_untrusted_certificate_is_a_tls_failure(
    tmp_path: Path, mutual: bool, wrong: Callable[[Certificates, Certificates], Tls | None]
) -> None:
    certificates, other = Certificates(tmp_path / "a"), Certificates(tmp_path / "b")
    result = scraped(Access(tls=wrong(certificates, other)), certificates.server("127.0.0.1", mutual=mutual))
    assert result.body is None
    assert result.error is not None
    assert result.error.reason in {CollectReason.TLS, CollectReason.RESET}


def test_a_certificate_for_another_name_needs_that_name(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    context = certificates.server("engine.internal", mutual=False)
    plain = Tls(ca_file=certificates.ca)
    assert scraped(Access(tls=plain), context).body is None
    assert scraped(Access(tls=replace(plain, server_name="engine.internal")), context).body is not None
    assert scraped(Access(tls=Tls(insecure_skip_verify=True)), context).body is not None


def test_a_new_certificate_is_used_without_a_restart(tmp_path: Path) -> None:
    first, second = Certificates(tmp_path / "now"), Certificates(tmp_path / "then")
    access = Access(tls=Tls(ca_file=first.ca))
    assert access.trust() is access.trust()
    assert scraped(access, second.server("127.0.0.1", mutual=False)).body is None
    first.ca.write_bytes(second.ca.read_bytes())
    assert scraped(access, second.server("127.0.0.1", mutual=False)).body is not None


def test_passwords_and_keys_come_from_files(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n", encoding="utf-8")
    result = scraped(Access(username="me", password_file=secret, header_files={"X-Key": secret}))
    assert result.body is not None
    expected = result.body.decode()
    assert f'X_Key="{SECRET.replace("-", "_")}"' in expected
    assert b64encode(f"me:{SECRET}".encode()).decode() in expected


@pytest.mark.parametrize(
    ("access", "expected"),
    [
        (lambda file: Access(username="me", password_file=file), "its password file"),
        (lambda file: Access(bearer_token_file=file), "its token file"),
        (lambda file: Access(header_files={"X-Key": file}), "its header file"),
        (lambda file: Access(tls=Tls(ca_file=file)), "the certificates in"),
        (lambda file: Access(tls=Tls(cert_file=file)), "the certificates in"),
    ],
)
def test_an_unreadable_file_is_named_in_each_error(
    tmp_path: Path, access: Callable[[Path], Access], expected: str
) -> None:
    file = tmp_path / "none"
    settings = access(file)

    async def requested() -> list[str]:
        messages = []
        client, api = (
            HttpClient("k8s", "http://127.0.0.1:9", access=settings),
            PrometheusApi("http://127.0.0.1:9", access=settings),
        )
        for question in (client.get("/"), api.vector("up", AT)):
            with pytest.raises(CollectError) as caught:
                await question
            messages.append(caught.value.message)
        await client.close()
        await api.close()
        return messages

    result = scraped(settings)
    assert result.error is not None
    for message in (result.error.message, *asyncio.run(requested())):
        assert f"{expected} {file}" in message
    file.write_text("no certificate", encoding="utf-8")
    if settings.tls is not None:
        assert "cannot be read" in str(scraped(settings).error)


def test_settings_give_the_same_access() -> None:
    built = {
        "headers": {"X-A": "1"},
        "header_files": {"X-B": "/run/b"},
        "basic_auth": {"username": "me", "password_file": "/run/p"},
        "tls": {"ca_file": "/run/ca", "cert_file": "/run/c", "key_file": "/run/k", "server_name": "s"},
    }
    access = AccessSettings.model_validate(built).access
    assert access == Access(
        headers={"X-A": "1"},
        header_files={"X-B": Path("/run/b")},
        username="me",
        password_file=Path("/run/p"),
        tls=Tls(Path("/run/ca"), Path("/run/c"), Path("/run/k"), "s"),
    )


@pytest.mark.parametrize(
    "access",
    [
        {"bearer_token_file": "/a", "basic_auth": {"username": "me"}},
        {"tls": {"key_file": "/a"}},
        {"basic_auth": {"username": "me", "password": SECRET}},
    ],
)
def test_contradictory_settings_are_rejected(access: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AccessSettings.model_validate(access)
