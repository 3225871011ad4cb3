"""Checks that a body is a complete metrics page, and detects its format, before its lines are parsed."""

from __future__ import annotations

from outrider.errors import CollectError, CollectReason

_MAGIC = (b"\x7fELF", b"PK\x03\x04", b"SQLite format 3", b"%PDF")
_CONTROL = bytes(byte for byte in range(32) if byte not in b"\t\n\r")
_MANY = 24  # control characters at the start: fewer may be part of labels


def is_openmetrics(body: bytes, openmetrics: bool | None) -> bool:
    """True for OpenMetrics. Raises CollectError if the body is not a metrics page or is truncated."""
    binary = _binary(body)
    if binary is not None:
        content, hint = binary
        raise CollectError(f"the page is {content} instead of text", reason=CollectReason.NOT_METRICS, hint=hint)
    start = body[:64].lstrip()[:1]
    if start in {b"<", b"["} or (start == b"{" and body[-64:].rstrip().endswith((b"}", b"]"))):
        kind = "HTML" if start == b"<" else "JSON"
        raise CollectError(
            f"the target returned {kind} instead of metrics",
            reason=CollectReason.NOT_METRICS,
            hint="check the path of the URL; most targets serve their metrics under /metrics",
        )
    ended = body[-16:].rstrip().endswith(b"# EOF")
    if ended if openmetrics is None else openmetrics:
        if not ended:
            raise _truncated("its '# EOF' line")
        return True
    if body and not body.endswith(b"\n"):
        raise _truncated("the end of its last line")
    return False


def _binary(body: bytes) -> tuple[str, str] | None:
    """Content type of a body that is not text, and a hint."""
    if body.startswith(b"\x1f\x8b"):
        return "gzip-compressed", "decompress it with gunzip; over HTTP, Content-Encoding: gzip is required"
    if body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16", "save it as UTF-8: iconv -f UTF-16 -t UTF-8"
    head = body[:1024]
    if head.startswith(_MAGIC) or len(head) - len(head.translate(None, _CONTROL)) >= _MANY:
        return "binary", "pass a text page of metrics, not a program, archive or database"
    return None


def _truncated(missing: str) -> CollectError:
    return CollectError(
        f"the page is truncated before {missing}",
        reason=CollectReason.TRUNCATED,
        hint="the target or a proxy truncated the response; check its log for a crash or a size limit",
    )


def invalid_line(line: bytes) -> CollectError:
    """Error for a line that cannot be parsed."""
    shown = line[:120].decode(errors="replace")
    try:
        line.decode()
    except UnicodeDecodeError:
        return CollectError(
            f"line is not valid UTF-8: {shown!r}",
            reason=CollectReason.NOT_METRICS,
            hint="a label of the exporter has another encoding; drop or fix it there",
        )
    return CollectError(
        f"line is not a sample: {shown!r}",
        reason=CollectReason.NOT_METRICS,
        hint="check that the URL serves the Prometheus text format",
    )
