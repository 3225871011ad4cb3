"""``outrider capacity emit``: documents of the newest plan, printed, written, compared or sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from outrider.clock import SystemClock
from outrider.errors import ActuationError, UnavailableError, UsageError
from outrider.model import Recommendation
from outrider.text.i18n import translate
from outrider.text.unknown_names import no_such
from planner.manifests import scaling_manifests as rendering
from planner.manifests.scaling_manifests import Document
from service.cli.capacity import applying
from service.cli.core.common import Context
from service.config.settings import Settings
from service.scaling import emitting
from service.wiring import remediation as wiring_remediation
from service.wiring import stores as wiring_stores

KINDS: tuple[str, ...] = get_args(rendering.Kind)


def emit(
    context: Context,
    service: str | None,
    formats: str | None,
    out: Path | None,
    *,
    diff: bool,
    send: bool,
    for_real: bool,
    apply: bool,
    confirmed: bool,
) -> None:
    """Renders, then writes, compares, sends or applies. Raises UsageError and UnavailableError."""
    if for_real and not send:
        raise UsageError("--for-real requires --send", hint="add --send, or omit --for-real")
    settings = context.settings()
    with wiring_stores.stores(settings) as (state, _):
        plan = state.plan()
        rendered = emitting.documents(settings, plan, service, _kinds(formats))
        if service is not None and not rendered:
            raise no_such("service", service, (item.service.name for item in plan.recommendations))
        sent = []
        if send:
            named = {document.service for document in settings.planner.scaling.emit}
            by_service = {item.service: item for item, _ in rendered if item.service.name in named}
            if not by_service:
                raise UsageError(
                    "no receiver is configured for the plan", hint="configure a receiver under planner.scaling.emit"
                )
            sent = [_sent(settings, state, item, for_real=for_real) for item in by_service.values()]
    applied = applying.apply(context, _whole(_reached(settings, rendered), formats), yes=confirmed) if apply else []
    patches = [rendering.git_patch(document, _before(out, document)) for _, document in rendered] if diff else []
    paths = _written(out, (document for _, document in rendered)) if out is not None and not diff else []
    result = {
        "documents": [
            {
                "service": document.service,
                "format": document.kind,
                "file": document.file,
                "path": document.path or None,
                "text": document.text,
            }
            for _, document in rendered
        ],
        "paths": [str(path) for path in paths],
        "patch": "".join(patches) if diff else None,
        "sent": sent,
        "applied": applied,
    }
    context.show(result, lambda shown: _shown(shown, context, send=send))


def _reached(
    settings: Settings, rendered: Iterable[tuple[Recommendation, Document]]
) -> list[tuple[Recommendation, Document]]:
    """The documents of services in the API server's cluster. Raises UsageError if only others have some."""
    listed, cluster = list(rendered), settings.cluster_of(settings.planner.scaling.kubernetes)
    own = [(item, document) for item, document in listed if item.service.cluster == cluster]
    if listed and not own:
        others = ", ".join(sorted({item.service.cluster for item, _ in listed}))
        hint = f"planner.scaling.kubernetes is the API server of {cluster}; set its cluster if it is another one"
        raise UsageError(f"every service of the plan is in another cluster: {others}", hint=hint)
    return own


def _whole(rendered: Iterable[tuple[Recommendation, Document]], formats: str | None) -> list[Mapping[str, Any]]:
    """The documents that are whole objects. Raises UsageError for requested patches, and without a whole object."""
    listed = [document for _, document in rendered]
    patch = next((document.kind for document in listed if document.kind != "cron"), None)
    if formats is not None and patch is not None:
        raise UsageError(f"{patch} changes another object and is not applied", hint="use --send, or --format cron")
    whole = [document.body for document in listed if document.kind == "cron"]
    if not whole:
        raise UsageError(
            "no document of the plan is a whole object", hint="use --format cron, or --send for the others"
        )
    return whole


def _kinds(formats: str | None) -> list[str] | None:
    if formats is None:
        return None
    kinds = [kind.strip() for kind in formats.split(",") if kind.strip()]
    if not kinds:
        raise UsageError("--format is empty", hint=f"formats are {', '.join(KINDS)}")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not a format of capacity emit", hint=f"formats are {', '.join(KINDS)}")
    return kinds


def _sent(settings: Any, state: Any, item: Recommendation, *, for_real: bool) -> dict[str, Any]:
    try:
        action, outcome = emitting.send(
            settings, state, item, SystemClock().now(), wiring_remediation.policy(settings), dry_run=not for_real
        )
    except ActuationError as error:
        if error.retryable:
            raise UnavailableError(error.message, hint=error.hint) from error
        raise UsageError(error.message, hint=error.hint) from error
    return {
        "service": item.service.name,
        "status": outcome.status.value,
        "dry_run": action.dry_run,
        "detail": outcome.detail,
    }


def _before(out: Path | None, document: Document) -> str:
    """Current content of a document in the folder. Empty for a new file."""
    try:
        return ((out or Path()) / document.file).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{document.file} cannot be read: {error}", hint="choose another folder with --out") from error


def _written(out: Path, documents: Iterable[Document]) -> list[Path]:
    paths = []
    try:
        for document in documents:
            path = out / document.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(document.text, encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise UsageError(
            f"{out} cannot be written: {error.strerror}", hint="choose another folder with --out"
        ) from error
    return paths


def _shown(shown: dict[str, Any], context: Context, *, send: bool) -> str:
    if shown["patch"] is not None:
        return str(shown["patch"]).rstrip("\n")
    if shown["applied"]:
        return "\n".join(applying.lines(context, shown["applied"]))
    if send:
        return "\n".join(f"{row['service']}: {row['status']}: {row['detail']}" for row in shown["sent"])
    if shown["paths"]:
        return "\n".join(shown["paths"])
    texts = [
        f"# {row['service']}: {row['format']} {row['path'] or row['file']}\n{row['text']}" for row in shown["documents"]
    ]
    return "---\n".join(texts).rstrip("\n") or translate("cli.no_services", context.language)
