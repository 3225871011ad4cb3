"""HTTP access to a server: request headers, credentials in files, and certificates.

Files are read for every request, because tokens and certificates rotate. Their contents never appear in a message: an
error names the file.
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from outrider.errors import CollectError, CollectReason


@dataclass(frozen=True, slots=True)
class Tls:
    """``cert_file`` and ``key_file`` are our client certificate, for mutual TLS.

    ``server_name`` is the name in the server's certificate if it differs from that of the URL.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    server_name: str | None = None
    insecure_skip_verify: bool = False

    def context(self) -> ssl.SSLContext:
        """The TLS context of the current files. Raises CollectError that names the faulty file."""
        files = tuple((file, _changed(file)) for file in (self.ca_file, self.cert_file, self.key_file))
        return _context(self, files)


@dataclass(frozen=True, slots=True)
class Access:
    """Access parameters of a server without its address. Defaults: no credentials, the system's certificates."""

    headers: Mapping[str, str] = field(default_factory=dict)
    header_files: Mapping[str, Path] = field(default_factory=dict)
    bearer_token_file: Path | None = None
    username: str | None = None
    password_file: Path | None = None
    tls: Tls | None = None

    def sent(self) -> dict[str, str]:
        """The headers of a request. Raises CollectError that names an unreadable file."""
        result = dict(self.headers)
        result.update((name, _secret(file, "header file")) for name, file in self.header_files.items())
        if self.username is not None:
            password = _secret(self.password_file, "password file") if self.password_file else ""
            result["Authorization"] = "Basic " + b64encode(f"{self.username}:{password}".encode()).decode()
        if self.bearer_token_file is not None:
            result["Authorization"] = "Bearer " + _secret(self.bearer_token_file, "token file")
        return result

    def trust(self) -> ssl.SSLContext | bool:
        """The ``ssl`` argument of aiohttp. Raises CollectError that names the faulty file."""
        return True if self.tls is None else self.tls.context()

    @property
    def server_name(self) -> str | None:
        """The ``server_hostname`` argument of aiohttp."""
        return self.tls.server_name if self.tls else None


def _secret(file: Path, kind: str) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CollectError(
            f"its {kind} {file} cannot be read", reason=CollectReason.OTHER, hint=f"check {file} and its permissions"
        ) from error


def _changed(file: Path | None) -> float | None:
    try:
        return None if file is None else file.stat().st_mtime
    except OSError as error:
        raise _unusable(file) from error


@lru_cache(maxsize=256)
def _context(tls: Tls, _files: tuple[tuple[Path | None, float | None], ...]) -> ssl.SSLContext:
    """One context for all users of the same files, recreated after a file changes."""
    try:
        context = ssl.create_default_context(cafile=str(tls.ca_file) if tls.ca_file else None)
    except (OSError, ValueError) as error:
        raise _unusable(tls.ca_file) from error
    if tls.insecure_skip_verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if tls.cert_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file)
        except (OSError, ValueError) as error:
            raise _unusable(tls.cert_file, "with its key ") from error
    return context


def _unusable(file: Path | None, more: str = "") -> CollectError:
    return CollectError(
        f"the certificates in {file} {more}cannot be read",
        reason=CollectReason.TLS,
        hint=f"check that {file} holds PEM certificates, and its permissions",
    )
