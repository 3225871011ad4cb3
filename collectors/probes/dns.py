"""DNS probe: resolves one name and checks its records."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime

from collectors.net.dns_client import NameServer, lookup
from collectors.probes.base import ProbeRequest
from collectors.probes.result import Outcome, ProbeResult
from outrider.errors import CollectError, CollectReason

_OUTCOMES = {CollectReason.TIMEOUT: Outcome.TIMEOUT, CollectReason.REFUSED: Outcome.REFUSED}
_MOST_SHOWN = 4


class DnsProbe:
    """Resolves one name."""

    def __init__(
        self,
        request: ProbeRequest,
        host: str,
        *,
        record: str = "A",
        expect: Collection[str] = (),
        servers: Sequence[NameServer] = (),
    ) -> None:
        """``expect`` are values that must be among the records; ``servers`` replace the system's name servers."""
        self._host, self._record, self._servers = host, record, tuple(servers)
        self._expect = tuple(expect)
        self.name, self.service, self.every, self.timeout = (
            request.name,
            request.service,
            request.every,
            request.timeout,
        )
        self.address = f"{host} ({record})"

    async def run(self, at: datetime) -> ProbeResult:
        """Makes one lookup."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            records = await lookup(self._host, self._record, within=self.timeout, servers=self._servers)
        except CollectError as error:
            outcome = _OUTCOMES.get(error.reason, Outcome.DNS)
            return ProbeResult(outcome, at, error.message, loop.time() - started)
        seconds = loop.time() - started
        values = {item.value.lower().rstrip(".") for item in records}
        missing = [item for item in self._expect if item.lower().rstrip(".") not in values]
        if missing:
            shown = ", ".join(sorted(values)[:_MOST_SHOWN])
            message = f"{self.address} resolves to {shown}, not to {', '.join(missing)}"
            return ProbeResult(Outcome.WRONG_RECORDS, at, message, seconds)
        return ProbeResult(Outcome.OK, at, "", seconds)

    async def close(self) -> None:
        """Does nothing: no connection is kept."""
