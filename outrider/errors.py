"""Error base classes. Errors of client libraries are converted to these at the boundary, chained with ``from``."""

from __future__ import annotations

from datetime import timedelta

from outrider.audit import redact_text


class OutriderError(Exception):
    """Base of all errors. ``hint`` is the next step for the user."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        """``message`` is one sentence; secrets in its URLs are redacted."""
        self.message = redact_text(message)
        super().__init__(self.message)
        self.hint = hint


class UsageError(OutriderError):
    """Wrong usage or unreadable input: exit code 2."""


class UnavailableError(OutriderError):
    """A required resource is missing: exit code 3."""


class ConfigProblem:
    """One fault in a YAML file: its position and the expected value."""

    __slots__ = ("file", "key", "line", "message")

    def __init__(self, file: str, line: int, key: str, message: str) -> None:
        """``line`` counts from 1; 0 if the fault has no line, such as a missing file."""
        self.file = file
        self.line = line
        self.key = key
        self.message = message

    def __str__(self) -> str:
        """``file:line: key: message``."""
        return f"{self.file}:{self.line}: {self.key}: {self.message}"


class ConfigError(UsageError):
    """An invalid configuration, with every fault in line order."""

    def __init__(self, message: str, problems: tuple[ConfigProblem, ...] = (), *, hint: str = "") -> None:
        """``problems`` is the output of ``config check``."""
        super().__init__(message, hint=hint)
        self.problems = problems


class CollectReason:
    """Reasons of failed scrapes, used unchanged in metric labels and logs."""

    REFUSED = "refused"
    TIMEOUT = "timeout"
    DNS = "dns"
    TLS = "tls"
    HTTP_STATUS = "http_status"
    NOT_METRICS = "not_metrics"
    TRUNCATED = "truncated"
    TOO_LARGE = "too_large"
    TOO_MANY_SERIES = "too_many_series"
    REDIRECT = "redirect"
    RESET = "connection_reset"
    OTHER = "other"


class CollectError(OutriderError):
    """A target could not be read. ``reason`` is one of ``CollectReason``."""

    def __init__(self, message: str, *, reason: str, hint: str = "", retry_after: timedelta | None = None) -> None:
        """``message`` names the target; ``retry_after`` is the wait that it requested."""
        super().__init__(message, hint=hint)
        self.reason = reason
        self.retry_after = retry_after


class DeliveryError(OutriderError):
    """A message could not be delivered. ``retryable`` False: a retry cannot succeed."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        reason: str = "other",
        hint: str = "",
        retry_after: timedelta | None = None,
    ) -> None:
        """``reason`` is a metric label. ``retry_after`` is the wait that the vendor requested for the channel."""
        super().__init__(message, hint=hint)
        self.retryable = retryable
        self.reason = reason
        self.retry_after = retry_after


class CardRejectedError(DeliveryError):
    """The vendor rejected the format of a message; its plain text may be accepted."""


class ActuationError(OutriderError):
    """An action could not be performed."""

    def __init__(
        self,
        message: str,
        *,
        retryable: bool,
        hint: str = "",
        status: int | None = None,
        retry_after: timedelta | None = None,
    ) -> None:
        """``retryable`` False: a retry cannot succeed. ``status`` is the HTTP status, None without a response.

        ``retry_after`` is the wait that the server requested.
        """
        super().__init__(message, hint=hint)
        self.retryable = retryable
        self.status = status
        self.retry_after = retry_after


class StoreError(OutriderError):
    """The store could not be read or written."""


class StoreUnavailableError(StoreError, UnavailableError):
    """The store is temporarily unavailable.

    The same call may succeed once the server is up, the disk has space or the file is restored.
    """


class StoreDamagedError(StoreUnavailableError):
    """Stored data is unreadable; restore a backup."""


class TakenOverError(StoreError):
    """Another engine took over the store; this commit was rolled back."""


class SchemaTooNewError(StoreError):
    """The database was written by a newer version."""


class UnitMismatchError(UsageError):
    """Quantities with incompatible units; the message names both."""
