"""Alertmanager's API v2 and its alert labels: alerts to post, silences, matchers.

https://github.com/prometheus/alertmanager/blob/main/api/v2/openapi.yaml. Shared by all that talks to an Alertmanager.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from outrider.wire.sanitize import clean, fitted

ALERTS_PATH: Final = "/api/v2/alerts"
SILENCES_PATH: Final = "/api/v2/silences"
SILENCE_PATH: Final = "/api/v2/silence/"
ORIGIN_LABEL: Final = "outrider_origin"
"""Label of every alert that an Outrider emits, with its ``origin_of``. An alert that returns with it is dropped."""
MOST_LABEL_BYTES: Final = 2_000
MOST_ANNOTATION_BYTES: Final = 40_000  # 10,000 characters of any script
_NAME = re.compile(r"[^a-zA-Z0-9_]")


def origin_of(cluster: str, installation: str) -> str:
    """The origin of what one installation sends: its cluster, and the id of its store.

    Two Outriders of one cluster, or with the default name of it, stay distinct.
    """
    return f"{cluster}-{installation}" if installation else cluster


@dataclass(frozen=True, slots=True)
class PostableAlert:
    """One alert for ``POST /api/v2/alerts``.

    While it fires, ``ends_at`` is the time at which Alertmanager resolves it unless it is sent again.
    """

    labels: Mapping[str, str]
    starts_at: datetime
    ends_at: datetime
    annotations: Mapping[str, str] = field(default_factory=dict)
    generator_url: str = ""


def post_body(alerts: Iterable[PostableAlert]) -> list[dict[str, Any]]:
    """The JSON of a request with these alerts."""
    return [
        {
            "labels": safe_labels(alert.labels),
            "annotations": {
                label_name(name): fitted(text, MOST_ANNOTATION_BYTES)
                for name, text in alert.annotations.items()
                if text
            },
            "startsAt": timestamp(alert.starts_at),
            "endsAt": timestamp(alert.ends_at),
            **({"generatorURL": alert.generator_url} if alert.generator_url else {}),
        }
        for alert in alerts
    ]


def safe_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels with names that every Alertmanager accepts; empty values are left out, as Alertmanager does."""
    return {label_name(name): fitted(clean(text), MOST_LABEL_BYTES) for name, text in labels.items() if text}


def label_name(name: str) -> str:
    """A label name of letters, digits and underscores."""
    plain = _NAME.sub("_", name) or "_"
    return f"_{plain}" if plain[0].isdigit() else plain


def timestamp(instant: datetime) -> str:
    """RFC 3339 with microseconds and Z."""
    return instant.isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class SilenceMatcher:
    """One matcher of a silence, as the API writes it."""

    name: str
    value: str
    is_regex: bool = False
    is_equal: bool = True

    @staticmethod
    def parse(document: Any) -> SilenceMatcher:
        """Reads a matcher. Raises KeyError, TypeError."""
        flags = bool(document["isRegex"]), bool(document.get("isEqual", True))
        return SilenceMatcher(str(document["name"]), str(document["value"]), *flags)


@dataclass(frozen=True, slots=True)
class AlertmanagerSilence:
    """One silence. ``state`` is active, pending or expired; ``id`` is empty before it is created."""

    id: str
    matchers: tuple[SilenceMatcher, ...]
    starts_at: datetime
    ends_at: datetime
    created_by: str
    comment: str
    state: str = "active"

    @staticmethod
    def parse(document: Any) -> AlertmanagerSilence | None:
        """Reads an entry of ``GET /api/v2/silences``; None if it is not one."""
        try:
            return AlertmanagerSilence(
                id=str(document["id"]),
                matchers=tuple(SilenceMatcher.parse(entry) for entry in document["matchers"]),
                starts_at=_instant(document["startsAt"]),
                ends_at=_instant(document["endsAt"]),
                created_by=str(document.get("createdBy", "")),
                comment=str(document.get("comment", "")),
                state=str(document["status"]["state"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def body(self) -> dict[str, Any]:
        """The JSON of ``POST /api/v2/silences``. With an id it changes that silence."""
        return {
            **({"id": self.id} if self.id else {}),
            "matchers": [
                {"name": item.name, "value": item.value, "isRegex": item.is_regex, "isEqual": item.is_equal}
                for item in self.matchers
            ],
            "startsAt": timestamp(self.starts_at),
            "endsAt": timestamp(self.ends_at),
            "createdBy": self.created_by,
            "comment": self.comment,
        }


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return instant.astimezone(UTC)
