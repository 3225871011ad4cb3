"""Reads back what a DNS or GSLB provider serves: its API, or DNS itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import dns.exception
import dns.rdatatype
import dns.resolver

from outrider.errors import ActuationError
from remediation.actuators.gslb.request_template import Values, filled_text
from remediation.actuators.http_endpoint import TIMEOUT, HttpEndpoint, host_of

_TOLERANCE = 0.005  # of a share: providers round to percent


@dataclass(frozen=True, slots=True)
class ApiRead:
    """``share`` is the dotted path of the number in the JSON at ``url``; ``whole`` is its value for all traffic."""

    url: str
    share: str
    whole: float = 1.0


@dataclass(frozen=True, slots=True)
class DnsRead:
    """``addresses`` are those that ``name`` has for each cluster; ``servers`` are queried, by default the system's."""

    name: str
    addresses: Mapping[str, Sequence[str]]
    servers: Sequence[str] = field(default_factory=tuple)


def share_by_api(read: ApiRead, endpoint: HttpEndpoint, values: Values) -> float:
    """Returns the share that the provider reports, 0 to 1. Raises ActuationError for a response without it."""
    url = filled_text(read.url, values)
    node: Any = endpoint.get(url).body
    path = filled_text(read.share, values)
    for part in path.split("."):
        if isinstance(node, list) and part.isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            node = node.get(part) if isinstance(node, Mapping) else None
    if isinstance(node, bool) or not isinstance(node, int | float):
        sentence = f"{host_of(url)} returned no number at {path}"
        raise ActuationError(sentence, retryable=False, hint="correct remediation.gslb.read.share")
    return float(node) / read.whole


def is_share(read: float, wanted: float) -> bool:
    """True if the provider's share is the wanted one, apart from rounding."""
    return abs(read - wanted) <= _TOLERANCE


def served_by_dns(read: DnsRead, cluster: str, share: float, timeout: timedelta = TIMEOUT) -> bool:
    """True if the addresses of the name agree with the share: only the cluster's, none of them, or some.

    Raises ActuationError: retryable if no server answers.
    """
    ours = {str(address) for address in read.addresses.get(cluster, ())}
    if not ours:
        sentence = f"no addresses of cluster {cluster} are configured"
        raise ActuationError(sentence, retryable=False, hint="set remediation.gslb.dns.addresses")
    seen = _addresses(read, timeout)
    if share >= 1.0 - _TOLERANCE:
        return bool(seen) and seen <= ours
    return bool(seen & ours) is (share > _TOLERANCE)


def _addresses(read: DnsRead, timeout: timedelta) -> set[str]:
    result: set[str] = set()
    try:
        resolver = dns.resolver.Resolver(configure=not read.servers)
        if read.servers:
            resolver.nameservers = [_server(entry, resolver) for entry in read.servers]
        resolver.lifetime = timeout.total_seconds()
        for kind in (dns.rdatatype.A, dns.rdatatype.AAAA):
            answer = resolver.resolve(read.name, kind, raise_on_no_answer=False)
            result |= {record.to_text() for record in answer.rrset or ()}
    except dns.resolver.NXDOMAIN:
        return set()
    except (dns.exception.DNSException, ValueError) as error:
        raise ActuationError(f"{read.name} cannot be resolved ({type(error).__name__})", retryable=True) from error
    return result


def _server(text: str, resolver: dns.resolver.Resolver) -> str:
    """The address of ``address:port``; sets the port of the resolver, which has one for all servers."""
    address, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and (address.count(":") == 0 or address.startswith("[")):
        resolver.port = int(port)
        return address.strip("[]")
    return text
