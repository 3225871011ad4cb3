"""The health check of gRPC (``grpc.health.v1.Health/Check``), which Triton, TensorRT-LLM and gateways offer.

Its libraries are those of the extra ``grpc``: they weigh 20 MB, and most sites have no such door.
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
from outrider.text import extras
from outrider.vocabulary.units import format_duration

_MOST_SAID = 200


class GrpcHealthProbe:
    """Asks whether a server, or one service of it, is serving."""

    def __init__(self, asked: ProbeRequest, host: str, port: int, *, service: str = "", tls: bool = False) -> None:
        """``service`` is the name that the check asks for, "" for the whole server.

        Raises UsageError when the libraries are not installed.
        """
        self._grpc, self._messages, self._stub = _libraries()
        self._asked, self._wanted, self._tls = asked, service, tls
        self.name, self.service, self.every, self.timeout = asked.name, asked.service, asked.every, asked.timeout
        self.address = f"{host}:{port}"

    async def run(self, at: datetime) -> ProbeResult:
        """One check over a new connection."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            async with asyncio.timeout(self.timeout.total_seconds() + 0.5):  # gRPC's own deadline says more
                status = await self._check()
        except self._grpc.aio.AioRpcError as error:
            return failed_result(self._fault(error), self._asked, self.address, at, begun)
        except (TimeoutError, CollectError, OSError, ValueError) as error:
            return failed_result(error, self._asked, self.address, at, begun)
        seconds = loop.time() - begun
        if status != self._messages.HealthCheckResponse.SERVING:
            word = self._messages.HealthCheckResponse.ServingStatus.Name(status)
            return ProbeResult(Outcome.NOT_SERVING, at, f"{self.address} says {word}", seconds)
        return ProbeResult(Outcome.OK, at, "", seconds)

    async def _check(self) -> int:
        access = self._asked.access
        metadata = tuple((name.lower(), value) for name, value in access.sent().items())
        async with self._channel() as channel:
            request = self._messages.HealthCheckRequest(service=self._wanted)
            answer = await self._stub(channel).Check(
                request, timeout=self.timeout.total_seconds(), metadata=metadata, wait_for_ready=False
            )
            return int(answer.status)

    def _channel(self) -> Any:
        # a pool of its own: else a new channel goes on with the connection, and the back-off, of the last one
        options: list[tuple[str, Any]] = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        if not self._tls:
            return self._grpc.aio.insecure_channel(self.address, options)
        tls = self._asked.access.tls
        if tls is None:
            return self._grpc.aio.secure_channel(self.address, self._grpc.ssl_channel_credentials(), options)
        if tls.server_name:
            options.append(("grpc.ssl_target_name_override", tls.server_name))
        trusted, chain = _content(tls.ca_file), _content(tls.cert_file)
        key = _content(tls.key_file or tls.cert_file)
        credentials = self._grpc.ssl_channel_credentials(trusted, key, chain)
        return self._grpc.aio.secure_channel(self.address, credentials, options)

    def _fault(self, error: Any) -> ProbeError:
        codes, code, address = self._grpc.StatusCode, error.code(), self.address
        said = " ".join(str(error.details() or "").split())[:_MOST_SAID]
        if code is codes.DEADLINE_EXCEEDED:
            return ProbeError(Outcome.TIMEOUT, f"{address} did not answer within {format_duration(self.timeout)}")
        if code is codes.UNAVAILABLE:
            return ProbeError(_unavailable(said), f"{address} cannot be reached: {said}")
        if code is codes.UNIMPLEMENTED:
            return ProbeError(Outcome.WRONG_ANSWER, f"{address} has no gRPC health service")
        if code is codes.NOT_FOUND:
            return ProbeError(Outcome.NOT_SERVING, f"{address} knows no service {self._wanted!r}")
        return ProbeError(Outcome.HTTP_STATUS, f"{address} answered {code.name}: {said}")

    async def close(self) -> None:
        """Nothing is kept open."""


def _unavailable(said: str) -> Outcome:
    """Only words of gRPC tell why a connection failed."""
    low = said.lower()
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
        raise UsageError("gRPC probes need libraries that are not installed", hint=extras.how("grpc")) from error
    return grpc, messages, stubs.HealthStub


def _content(file: Path | None) -> bytes | None:
    try:
        return None if file is None else file.read_bytes()
    except OSError as error:
        raise CollectError(
            f"the certificates in {file} cannot be read", reason=CollectReason.TLS, hint=f"check {file}"
        ) from error
