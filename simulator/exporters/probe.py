"""The page of a generation probe outside the cluster, which sends a short request to one service's ingress.

Names are those of the signal vocabulary; success, duration, status and certificate also have the names of
blackbox_exporter.
"""

from __future__ import annotations

import math

from simulator.exporters.blackbox import IngressProbe
from simulator.exporters.text import go_number, header
from simulator.fleet import Fleet

_FAMILIES = (
    ("probe_success", "Displays whether or not the probe was a success"),
    ("probe_duration_seconds", "Returns how long the probe took to complete in seconds"),
    ("probe_http_status_code", "Response HTTP status code"),
    ("probe_ssl_earliest_cert_expiry", "Returns earliest SSL cert expiry in unixtime"),
    ("probe_ttft_seconds", "Time to first token of the generation probe"),
    ("probe_itl_seconds", "Mean gap between tokens of the generation probe"),
    ("probe_e2e_seconds", "Whole time of the probe"),
    ("probe_cert_expiry_seconds", "Seconds until the TLS certificate of the entry expires"),
)


class ProbePages:
    """Writes the page of any service. Values that the probe could not measure are missing."""

    def __init__(self) -> None:
        self._probe: IngressProbe | None = None

    def page(self, fleet: Fleet, service: int) -> bytes:
        """Returns the page of a service, by its index in the fleet specification."""
        if self._probe is None:
            self._probe = IngressProbe(fleet)
        result = self._probe.probe()
        expiry = float(result.expiry_seconds[service])
        values = (
            float(result.success[service]),
            float(result.e2e[service]),
            float(result.status[service]),
            float(round(fleet.at + expiry)) if math.isfinite(expiry) else math.nan,
            float(result.ttft[service]),
            float(result.itl[service]),
            float(result.e2e[service]),
            expiry,
        )
        known = [(family, value) for family, value in zip(_FAMILIES, values, strict=True) if math.isfinite(value)]
        lines = [f"{header(name, 'gauge', text)}{name} {go_number(value)}\n" for (name, text), value in known]
        return "".join(lines).encode()
