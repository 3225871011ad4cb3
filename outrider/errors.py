"""Error roots. Client libraries' errors become one of these at the edge, chained with ``from``."""

from __future__ import annotations

from datetime import timedelta

from outrider.audit import redact_text


class OutriderError(Exception):
    """The root. ``hint`` says what to do next."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        """``message`` is one sentence; what its URLs hide is taken out of it."""
        self.message = redact_text(message)
        super().__init__(self.message)
        self.hint = hint


class UsageError(OutriderError):
    """Wrong usage or unreadable input: exit code 2."""


class UnavailableError(OutriderError):
    """Something needed is not there: exit code 3."""


class ConfigProblem:
    """One fault in a YAML file: where it stands and what was expected."""

    __slots__ = ("file", "key", "line", "message")

    def __init__(self, file: str, line: int, key: str, message: str) -> None:
        """``line`` counts from 1; 0 when the fault has no line, such as a missing file."""
        self.file = file
        self.line = line
        self.key = key
        self.message = message

    def __str__(self) -> str:
        """``file:line: key: message``."""
        return f"{self.file}:{self.line}: {self.key}: {self.message}"


class ConfigError(UsageError):
    """A configuration that cannot be used, with every fault found in it, in line order."""

    def __init__(self, message: str, problems: tuple[ConfigProblem, ...] = (), *, hint: str = "") -> None:
        """``problems`` are what ``config check`` lists."""
        super().__init__(message, hint=hint)
        self.problems = problems


class CollectReason:
    """Labels of a failed scrape; they go to the metric label and the log unchanged."""

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
        """``message`` names the target, ``retry_after`` is how long it asks to be left alone."""
        super().__init__(message, hint=hint)
        self.reason = reason
        self.retry_after = retry_after


class DeliveryError(OutriderError):
    """A message could not be delivered. ``retryable`` False means: trying again cannot help."""

    def __init__(self, message: str, *, retryable: bool, reason: str = "other", hint: str = "") -> None:
        """``reason`` is a metric label."""
        super().__init__(message, hint=hint)
        self.retryable = retryable
        self.reason = reason


class ActuationError(OutriderError):
    """An action could not be performed."""

    def __init__(self, message: str, *, retryable: bool, hint: str = "") -> None:
        """``retryable`` False means: do not try again."""
        super().__init__(message, hint=hint)
        self.retryable = retryable


class StoreError(OutriderError):
    """The store could not be read or written."""


class StoreUnavailableError(StoreError, UnavailableError):
    """The store takes and gives nothing for now.

    The same call may succeed once the server is back, the disk has room or the file is restored.
    """


class StoreDamagedError(StoreUnavailableError):
    """What is stored cannot be read back; a backup brings it back."""


class TakenOverError(StoreError):
    """Another engine took over the store: nothing of this commit was kept."""


class SchemaTooNewError(StoreError):
    """The database was written by a newer program."""


class UnitMismatchError(UsageError):
    """Two quantities that cannot be combined; the message names both units."""
