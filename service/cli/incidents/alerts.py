"""``outrider alerts`` and ``outrider incidents``: list, show, acknowledge, resolve, silence, preview."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer

from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.model import AlertState
from outrider.ports import StateReader
from outrider.text.i18n import Language, translate
from service.cli.core import client, tables
from service.cli.core.client import Person
from service.cli.core.common import ON_A_TERMINAL, Context, leaf
from service.cli.incidents import response
from service.cli.incidents.silence_options import SilenceOptions
from service.incidents import silence_preview
from service.incidents.silence_preview import as_of
from service.wiring import stores as wiring_stores

alerts_app = typer.Typer(help="List, acknowledge, resolve and silence alerts.", no_args_is_help=ON_A_TERMINAL)
incidents_app = typer.Typer(
    help="List, show and assign incidents; comments and follow-ups.", no_args_is_help=ON_A_TERMINAL
)

Fingerprint = Annotated[str, typer.Argument(help="Fingerprint of the alert.")]
IncidentId = Annotated[str, typer.Argument(help="Incident id.")]


@leaf(alerts_app, "list", example="outrider alerts list --state firing -o json")
def list_alerts(
    context: Context,
    state: Annotated[AlertState | None, typer.Option("--state", help="Only alerts in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")] = 200,
) -> None:
    """List alerts, newest first."""
    with wiring_stores.state_reader(context.settings()) as store:
        selected = store.alerts(states=[state] if state else None, limit=limit)
    context.show(
        [serialization.alert(alert, context.language) for alert in selected],
        lambda shown: tables.alerts(shown, context.language),
    )


@leaf(alerts_app, "show", example="outrider alerts show 3f2a91c0 -o json")
def show_alert(context: Context, fingerprint: Fingerprint) -> None:
    """Show one alert."""
    with wiring_stores.state_reader(context.settings()) as store:
        stored = store.alert(fingerprint)
    if stored is None:
        raise UsageError(f"no alert has the fingerprint {fingerprint!r}", hint="list them with outrider alerts list")
    context.show(serialization.alert(stored, context.language))


@leaf(alerts_app, "ack", example="outrider alerts ack inc-20261121T0805-3f2a --as li")
def acknowledge(
    context: Context,
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Incident id, or fingerprint of one of its alerts.")],
    person: Person = "",
) -> None:
    """Acknowledge an incident: its notifications are no longer repeated."""
    with wiring_stores.state_reader(context.settings()) as store:
        incident = _incident_of(store, identifier)
    context.show(_write(context, "POST", f"/incidents/{quote(incident, safe='')}/ack", person))


@leaf(alerts_app, "resolve", example="outrider alerts resolve 3f2a91c0")
def resolve(context: Context, fingerprint: Fingerprint, person: Person = "") -> None:
    """Resolve an alert manually."""
    context.show(_write(context, "POST", f"/alerts/{quote(fingerprint, safe='')}/resolve", person))


@leaf(alerts_app, "silence", example="outrider alerts silence --match 'node=~\"gpu-.*\"' --for 2h --preview")
def silence(
    context: Context,
    options: SilenceOptions,
    preview: Annotated[
        bool, typer.Option("--preview", help="Show what it would mute of what fires now; silence nothing.")
    ] = False,
    person: Person = "",
) -> None:
    """Silence alerts for a while; they still fire and are recorded."""
    body = options.body()
    if preview:
        context.show(_preview(context, body), lambda shown: _preview_text(shown, context.language))
    else:
        context.show(_write(context, "POST", "/silences", person, body))


@leaf(alerts_app, "silences", example="outrider alerts silences -o json")
def list_silences(context: Context) -> None:
    """List silences and maintenance windows that have not ended."""
    settings = context.settings()
    with wiring_stores.state_reader(settings) as store:
        windows = [window.silence() for window in settings.maintenance]
        rows = silence_preview.rows(store, windows, as_of(store))
    context.show(rows, lambda shown: tables.silences(shown, context.language))


@leaf(alerts_app, "unsilence", example="outrider alerts unsilence 7c1d")
def unsilence(
    context: Context, silence_id: Annotated[str, typer.Argument(help="Silence id.")], person: Person = ""
) -> None:
    """End a silence."""
    context.show(_write(context, "DELETE", f"/silences/{quote(silence_id, safe='')}", person))


@leaf(incidents_app, "list", example="outrider incidents list --open -o json")
def list_incidents(
    context: Context,
    open_only: Annotated[bool, typer.Option("--open", help="Open incidents only.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of results.")] = 100,
) -> None:
    """List incidents, newest first."""
    with wiring_stores.state_reader(context.settings()) as store:
        selected = store.incidents(open_only=open_only, limit=limit)
    context.show(
        [serialization.incident(incident, context.language) for incident in selected],
        lambda shown: tables.incidents(shown, context.language),
    )


@leaf(incidents_app, "show", example="outrider incidents show inc-20261121T0805-3f2a -o json")
def show_incident(context: Context, incident: IncidentId) -> None:
    """Show one incident with the evidence of its suspected cause (-o json: of all hypotheses)."""
    context.show(_story(context, incident), lambda story: _incident_text(story, context.language))


@leaf(incidents_app, "timeline", example="outrider incidents timeline inc-20261121T0805-3f2a")
def timeline(context: Context, incident: IncidentId) -> None:
    """Show the timeline of one incident, oldest entry first."""
    lines = _story(context, incident)["timeline"]
    context.show(lines, lambda shown: "\n".join(f"{line['at']}  {line['text']}" for line in shown))


response.add(incidents_app)


def _write(context: Context, method: str, path: str, person: str, body: dict[str, Any] | None = None) -> Any:
    return client.write(context, method, path, body, user=client.person_or_user(person))


def _story(context: Context, incident: str) -> dict[str, Any]:
    with wiring_stores.state_reader(context.settings()) as store:
        stored = store.incident(incident)
    if stored is None:
        raise UsageError(f"no incident has the id {incident!r}", hint="list them with outrider incidents list")
    return serialization.incident_story(stored, context.language)


def _incident_text(story: dict[str, Any], language: Language) -> str:
    """Incident, summary, and supporting evidence of its suspected cause."""
    from dashboards.components.format import observation  # noqa: PLC0415 - only this table needs it

    first = story["hypotheses"][0] if story["hypotheses"] else None
    lines = [observation(item, language) for item in first["evidence"]] if first else []
    parts = [tables.incidents([story], language), story["summary"]]
    if lines:
        parts.append("\n".join([translate("notify.line.evidence", language), *(f"- {line}" for line in lines)]))
    elif first:
        parts.append(translate("cli.no_evidence", language))
    return "\n\n".join(parts)


def _incident_of(store: StateReader, identifier: str) -> str:
    """Incident with that id, or the one that contains the alert with that fingerprint. Raises UsageError."""
    if store.incident(identifier) is not None:
        return identifier
    alert = store.alert(identifier)
    if alert is None:
        raise UsageError(
            f"no incident has the id {identifier!r}, and no alert that fingerprint",
            hint="list them with outrider incidents list and outrider alerts list",
        )
    if alert.incident is None:
        raise UsageError(
            f"alert {identifier!r} belongs to no incident, so there is nothing to acknowledge",
            hint="use outrider alerts resolve or outrider alerts silence instead",
        )
    return alert.incident


def _preview(context: Context, body: dict[str, Any]) -> dict[str, Any]:
    """The preview, computed from the store: it needs no API."""
    from service.incidents import silence_request  # noqa: PLC0415 - only a preview needs the validation of the API

    with wiring_stores.state_reader(context.settings()) as store:
        now = as_of(store)
        wanted = silence_request.parse(body, now)
        result = silence_preview.preview(store, wanted, store.topology(), now)
    return silence_preview.preview_row(result, wanted, now, context.language)


def _preview_text(shown: dict[str, Any], language: Language) -> str:
    counts = {"muted": shown["muted"], "firing": shown["firing"], "incidents": len(shown["incidents"])}
    parts = [translate("cli.silence_preview", language, **counts)]
    if not shown["in_force"]:
        following = shown["next"] or translate("cli.silence_never", language)
        parts.append(translate("cli.silence_next", language, next=following))
    if shown["alerts"]:
        parts.append(tables.alerts(shown["alerts"], language))
    return "\n\n".join(parts)
