"""Limits of remediation in the demo: levels, approvals and times from a file that is read again when it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outrider.text import yaml_file
from service.config.remediation_settings import RemediationSettings
from service.config.settings import Settings, load

# The fleet performs every action itself, and brings what its services may give up.
_OF_THE_FLEET = frozenset(
    {
        *("actuator", "actuators", "control_url", "kubernetes", "traffic", "engine", "hooks", "gslb"),
        *("degrade", "cluster_switch"),
    }
)
KEYS = frozenset(RemediationSettings.model_fields) - _OF_THE_FLEET


@dataclass(frozen=True, slots=True)
class Limits:
    """Keys of ``remediation`` that a person set: as ``written``, and as validated ``values``."""

    written: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)

    def over(self, settings: Settings) -> Settings:
        """Returns the settings with these limits instead of their own."""
        remediation = settings.remediation.model_copy(update=dict(self.values))
        return settings.model_copy(update={"remediation": remediation})


class LimitsFile:
    """The section ``remediation`` of a configuration file, without its performers."""

    def __init__(self, file: Path, cluster: str) -> None:
        """``cluster`` is that of the simulated fleet."""
        self._file, self._cluster = file, cluster
        self._content: bytes | None = None

    def changed(self) -> Limits | None:
        """Returns the limits if the file changed since the last call. Raises ConfigError once for a mistake."""
        try:
            content = self._file.read_bytes()
        except OSError:
            content = b""  # reading it reports the reason
        if content == self._content:
            return None
        self._content = content
        return self._read()

    def _read(self) -> Limits:
        remediation = load(self._file, fleet=self._cluster).remediation
        written = (yaml_file.read(self._file).value or {}).get("remediation") or {}
        given = {key: value for key, value in written.items() if key in KEYS}
        return Limits(given, {key: getattr(remediation, key) for key in given})
