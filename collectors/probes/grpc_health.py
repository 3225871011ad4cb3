"""gRPC health check (``grpc.health.v1.Health/Check``), offered by Triton, TensorRT-LLM and gateways.

Needs the extra ``grpc``: its libraries take 20 MB, and most sites have no such endpoint.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from collectors.probes.base import ProbeError, ProbeRequest, failed_result
from collectors.probes.result import Outcome, ProbeResult
from outrider.errors import CollectError, CollectReason, UsageError
from outrider.text import install_hints
from outrider.vocabulary.units import format_duration

_MAX_DETAIL = 200


class GrpcHealthProbe:
    """Checks whether a server, or one of its services, is serving."""

    def __init__(self, request: ProbeRequest, host: str, port: int, *, service: str = "", tls: bool = False) -> None:
        """``service`` is the service name in the check, "" for the whole server.

        Raises UsageError if the libraries are not installed.
        """
        self._grpc, self._messages, self._stub = _libraries()
        self._settings, self._service_name, self._tls = request, service, tls
        self.name, self.service, self.every, self.timeout = (
            request.name,
            request.service,
            request.every,
            request.timeout,
        )
        self.address = f"{host}:{port}"

    async def run(self, at: datetime) -> ProbeResult:
        """Makes one check over a new connection."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            async with asyncio.timeout(self.timeout.total_seconds() + 0.5):  # gRPC's own deadline has more detail
                status = await self._check()
        except self._grpc.aio.AioRpcError as error:
            return failed_result(self._error(error), self._settings, self.address, at, started)
        except (TimeoutError, CollectError, OSError, ValueError) as error:
            return failed_result(error, self._settings, self.address, at, started)
        seconds = loop.time() - started
        if status != self._messages.HealthCheckResponse.SERVING:
            word = self._messages.HealthCheckResponse.ServingStatus.Name(status)
            return ProbeResult(Outcome.NOT_SERVING, at, f"{self.address} reports {word}", seconds)
        return ProbeResult(Outcome.OK, at, "", seconds)

    async def _check(self) -> int:
        access = self._settings.access
        metadata = tuple((name.lower(), value) for name, value in access.sent().items())
        async with self._channel() as channel:
            request = self._messages.HealthCheckRequest(service=self._service_name)
            answer = await self._stub(channel).Check(
                request, timeout=self.timeout.total_seconds(), metadata=metadata, wait_for_ready=False
            )
            return int(answer.status)

    def _channel(self) -> Any:
        # its own pool: otherwise a new channel reuses the connection, and the backoff, of the last one
        options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        if not self._tls:
            return self._grpc.aio.insecure_channel(self.address, options)
        tls = self._settings.access.tls
        if tls is None:
            return self._grpc.aio.secure_channel(self.address, self._grpc.ssl_channel_credentials(), options)
        if tls.server_name:
            options.append(("grpc.ssl_target_name_override", tls.server_name))
        trusted, chain = _content(tls.ca_file), _content(tls.cert_file)
        key = _content(tls.key_file or tls.cert_file)
        credentials = self._grpc.ssl_channel_credentials(trusted, key, chain)
        return self._grpc.aio.secure_channel(self.address, credentials, options)

    def _error(self, error: Any) -> ProbeError:
        codes, code, address = self._grpc.StatusCode, error.code(), self.address
        detail = " ".join(str(error.details() or "").split())[:_MAX_DETAIL]
        if code is codes.DEADLINE_EXCEEDED:
            return ProbeError(Outcome.TIMEOUT, f"{address} did not respond within {format_duration(self.timeout)}")
        if code is codes.UNAVAILABLE:
            return ProbeError(_unavailable(detail), f"{address} cannot be reached: {detail}")
        if code is codes.UNIMPLEMENTED:
            return ProbeError(Outcome.WRONG_ANSWER, f"{address} has no gRPC health service")
        if code is codes.NOT_FOUND:
            return ProbeError(Outcome.NOT_SERVING, f"{address} knows no service {self._service_name!r}")
        return ProbeError(Outcome.HTTP_STATUS, f"{address} returned {code.name}: {detail}")

    async def close(self) -> None:
        """Does nothing: no connection is kept."""


def _unavailable(detail: str) -> Outcome:
    """Only gRPC's error text distinguishes why a connection failed."""
    low = detail.lower()
    if "dns" in low or "resol" in low or "name or service" in low:
        return Outcome.DNS
    if "ssl" in low or "tls" in low or "handshake" in low or "certificate" in low:
        return Outcome.TLS
    if "refused" in low or "failed to connect" in low:
        return Outcome.REFUSED
    return Outcome.BROKEN_OFF


def _libraries() -> tuple[Any, Any, Any]:
    try:
        grpc = import_module("grpc")
        messages, stubs = import_module("grpc_health.v1.health_pb2"), import_module("grpc_health.v1.health_pb2_grpc")
    except ImportError as error:
        raise UsageError("gRPC probes need extra libraries", hint=install_hints.how("grpc")) from error
    return grpc, messages, stubs.HealthStub


def _content(file: Path | None) -> bytes | None:
    try:
        return None if file is None else file.read_bytes()
    except OSError as error:
        raise CollectError(
            f"the certificates in {file} cannot be read", reason=CollectReason.TLS, hint=f"check {file}"
        ) from error
