"""One look-up: whether the name of a service leads anywhere, and where it should."""

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
    """Looks one name up."""

    def __init__(
        self,
        asked: ProbeRequest,
        host: str,
        *,
        record: str = "A",
        expect: Collection[str] = (),
        servers: Sequence[NameServer] = (),
    ) -> None:
        """``expect`` are values that must be among the records; ``servers`` are asked instead of the system's."""
        self._host, self._record, self._servers = host, record, tuple(servers)
        self._expect = tuple(expect)
        self.name, self.service, self.every, self.timeout = asked.name, asked.service, asked.every, asked.timeout
        self.address = f"{host} ({record})"

    async def run(self, at: datetime) -> ProbeResult:
        """One look-up."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            found = await lookup(self._host, self._record, within=self.timeout, servers=self._servers)
        except CollectError as fault:
            outcome = _OUTCOMES.get(fault.reason, Outcome.DNS)
            return ProbeResult(outcome, at, fault.message, loop.time() - begun)
        seconds = loop.time() - begun
        values = {one.value.lower().rstrip(".") for one in found}
        lacking = [one for one in self._expect if one.lower().rstrip(".") not in values]
        if lacking:
            shown = ", ".join(sorted(values)[:_MOST_SHOWN])
            said = f"{self.address} leads to {shown} and not to {', '.join(lacking)}"
            return ProbeResult(Outcome.WRONG_RECORDS, at, said, seconds)
        return ProbeResult(Outcome.OK, at, "", seconds)

    async def close(self) -> None:
        """Nothing is kept open."""
