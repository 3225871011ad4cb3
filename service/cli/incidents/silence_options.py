"""Options of ``outrider alerts silence``, as the body of a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from outrider.clock import parse_rfc3339, rfc3339
from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.model import EntityRef
from service.cli.core.common import duration_of


@dataclass(frozen=True, slots=True)
class SilenceOptions:
    """What to silence, and when."""

    rule: Annotated[str | None, typer.Option("--rule", help="Silence this rule only.")] = None
    entity: Annotated[
        str | None, typer.Option("--entity", help="Silence this entity only: cluster/kind/namespace/name.")
    ] = None
    match: Annotated[
        list[str] | None,
        typer.Option("--match", help="Matcher over labels such as node=~'gpu-.*'; repeat for several, all must hold."),
    ] = None
    duration: Annotated[str, typer.Option("--for", help="Duration of the silence, for example 2h.")] = "1h"
    starts_at: Annotated[
        str | None, typer.Option("--from", help="Start, for example 2026-12-24T18:00:00Z. Default: now.")
    ] = None
    between: Annotated[
        str | None, typer.Option("--between", help="In force only at these times of day, for example 22:00-02:00.")
    ] = None
    days: Annotated[
        str | None, typer.Option("--days", help="Days on which --between starts, for example mon,tue. Default: all.")
    ] = None
    timezone: Annotated[str, typer.Option("--timezone", help="Time zone of --between, for example Asia/Shanghai.")] = (
        "UTC"
    )
    dependents: Annotated[
        bool, typer.Option("--dependents", help="Also silence what rests on the selected entities.")
    ] = False
    comment: Annotated[str, typer.Option("--comment", help="Reason, shown with the silence.")] = ""

    def body(self) -> dict[str, Any]:
        """Returns the body of POST /silences. Raises UsageError."""
        if self.rule is None and self.entity is None and not self.match:
            raise UsageError(
                "a silence needs --rule, --entity or --match", hint="silencing everything is not supported"
            )
        if self.between is None and (self.days is not None or self.timezone != "UTC"):
            raise UsageError("--days and --timezone belong to --between", hint="for example --between 22:00-02:00")
        body: dict[str, Any] = {
            "rule": self.rule,
            "matchers": list(self.match or ()),
            "duration_seconds": duration_of("--for", self.duration).total_seconds(),
            "dependents": self.dependents,
            "comment": self.comment,
        }
        if self.entity is not None:
            body["entity"] = _entity(self.entity)
        if self.starts_at is not None:
            body["starts_at"] = _instant(self.starts_at)
        if self.between is not None:
            body["window"] = self._window(self.between)
        return body

    def _window(self, between: str) -> dict[str, Any]:
        start, dash, end = between.partition("-")
        if not dash:
            raise UsageError(f"--between: {between!r} is not a span", hint="write it as 22:00-02:00")
        days = [day.strip().lower() for day in (self.days or "").split(",") if day.strip()]
        return {"start": start.strip(), "end": end.strip(), "days": days, "timezone": self.timezone}


def _entity(text: str) -> dict[str, Any]:
    try:
        return serialization.entity(EntityRef.from_key(text))
    except ValueError as error:
        raise UsageError(f"{text!r} is not an entity", hint="write it as cluster/kind/namespace/name") from error


def _instant(text: str) -> str:
    try:
        return rfc3339(parse_rfc3339(text))
    except ValueError as error:
        raise UsageError(f"--from: {text!r} is not a time", hint="write it as 2026-12-24T18:00:00Z") from error
