"""Access to servers: headers, credentials in files, certificates."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from outrider.wire.http_auth import Access, Tls
from service.config.settings_base import Section


class BasicAuthSettings(Section):
    """A user name, and a file with the password."""

    username: str = Field(description="User name.", min_length=1, examples=["outrider"])
    password_file: Path | None = Field(
        None, description="File with the password, read at every request.", examples=["/run/secrets/password"]
    )


class TlsSettings(Section):
    """Trusted certificates, and the client certificate."""

    ca_file: Path | None = Field(
        None, description="CA certificates to trust instead of the system's (PEM).", examples=["/run/secrets/ca.crt"]
    )
    cert_file: Path | None = Field(
        None, description="Client certificate for mutual TLS (PEM).", examples=["/run/secrets/tls.crt"]
    )
    key_file: Path | None = Field(
        None,
        description="Key of the client certificate, if cert_file does not contain it.",
        examples=["/run/secrets/tls.key"],
    )
    server_name: str | None = Field(
        None,
        description=("Expected name in the server certificate, if it differs from the URL."),
        examples=["api.example"],
    )
    insecure_skip_verify: bool = Field(False, description="Skip certificate verification; for tests only.")

    @model_validator(mode="after")
    def _a_key_belongs_to_a_certificate(self) -> Self:
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file requires cert_file")
        return self


class AccessSettings(Section):
    """Access to a server. Credentials are in files, never in the configuration itself."""

    headers: dict[str, str] = Field({}, description="Additional request headers.", examples=["{X-Team: platform}"])
    header_files: dict[str, Path] = Field(
        {},
        description="Additional request headers whose values are in files.",
        examples=["{X-Api-Key: /run/secrets/key}"],
    )
    bearer_token_file: Path | None = Field(
        None,
        description="File with a bearer token; in a pod /var/run/secrets/kubernetes.io/serviceaccount/token.",
        examples=["/run/secrets/token"],
    )
    basic_auth: BasicAuthSettings | None = Field(None, description="User name and password.")
    tls: TlsSettings | None = Field(None, description="Certificates, for https.")

    @model_validator(mode="after")
    def _one_authorization(self) -> Self:
        if self.bearer_token_file is not None and self.basic_auth is not None:
            raise ValueError("expected bearer_token_file or basic_auth, not both")
        return self

    @property
    def access(self) -> Access:
        """Access options for collectors."""
        basic, tls = self.basic_auth, self.tls
        return Access(
            headers=self.headers,
            header_files=self.header_files,
            bearer_token_file=self.bearer_token_file,
            username=basic.username if basic else None,
            password_file=basic.password_file if basic else None,
            tls=Tls(**tls.model_dump()) if tls else None,
        )
