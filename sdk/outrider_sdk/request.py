"""One request, from start to end."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Optional

from outrider_sdk.metrics import STAGES
from outrider_sdk.quiet import quiet
from outrider_sdk.validity import HEAD, TAIL, check

if TYPE_CHECKING:
    from outrider_sdk.service import ModelService

_CANCELS = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)
_current: ContextVar[Optional[Request]] = ContextVar("outrider_sdk_request", default=None)


def current() -> Optional[Request]:
    """The request of the current context; None outside of one."""
    return _current.get()


class Request:
    """A context manager, for ``with`` and ``async with``. Its methods never raise.

    It ends as ``error`` if an exception leaves the block, as ``rejected`` if the exception has a ``status_code`` of 400
    to 499, as ``cancelled`` if the client disconnects (``CancelledError``, a closed generator), else as ``ok``. Threads
    may share one.
    """

    def __init__(self, service: ModelService, model: object, tenant: object) -> None:
        """Starts on entry; labels are fixed here."""
        self._service = service
        self.metrics = service.metrics
        self._model, self._tenant = service.labels(model, tenant)
        self._begun: Optional[float] = None
        self._first: Optional[float] = None
        self._last: Optional[float] = None
        self._output = 0
        self._text: Optional[list[str]] = None
        self._size = 0
        self._outcome: Optional[str] = None
        self._over = False
        self._lock = threading.Lock()
        self._entered: Optional[Token[Optional[Request]]] = None

    # --- calls of the service -------------------------------------------------------------------------

    @quiet
    def first_token(self) -> None:
        """Records the first token; later calls have no effect."""
        now = self._service.now()
        with self._lock:
            if self._first is not None or self._begun is None:
                return
            self._first = self._last = now
        self.metrics.first_token.labels(self._model, self._tenant).observe(max(0.0, now - self._begun))

    @quiet
    def tokens(self, count: int = 1) -> None:
        """Adds ``count`` tokens of the answer; the first call also records the first token."""
        if count <= 0:
            return
        self.first_token()
        with self._lock:
            self._output += count
            self._last = self._service.now()
        self.metrics.tokens.labels(self._model, self._tenant, "output").inc(count)

    @quiet
    def input_tokens(self, count: int) -> None:
        """Adds ``count`` tokens of the prompt."""
        if count > 0:
            self.metrics.tokens.labels(self._model, self._tenant, "input").inc(count)

    @quiet
    def output(self, text: str) -> Optional[str]:
        """Checks the whole answer now. Returns the reason why it is invalid, None if it is valid."""
        with self._lock:
            self._text = None
        return self._judge(text)

    @quiet
    def piece(self, text: str, tokens: int = 1) -> None:
        """Adds a piece of a streamed answer; the pieces together are checked at the end of the request."""
        if tokens:
            self.tokens(tokens)
        with self._lock:
            if self._text is None:
                self._text = []
            self._text.append(text)
            self._size += len(text)
            if self._size > 4 * (HEAD + TAIL):  # only head and tail are ever checked
                joined = "".join(self._text)
                self._text = [joined[:HEAD], joined[-TAIL:]]
                self._size = HEAD + TAIL

    @quiet
    def fail(self) -> None:
        """Marks the request as failed without an exception."""
        self._outcome = "error"

    @quiet
    def reject(self) -> None:
        """Marks the request as rejected: too long, not allowed."""
        self._outcome = "rejected"

    def stage(self, name: str) -> Stage:
        """Times a stage: queue, preprocess, copy, compute or postprocess; others count as ``other``."""
        return Stage(self._service, self._model, name if name in STAGES else "other")

    # --- start and end --------------------------------------------------------------------------------

    @quiet
    def begin(self) -> None:
        """Starts the clock, as entering the block does."""
        if self._begun is None:
            self._begun = self._service.now()
            self.metrics.running.labels(self._model).inc()

    @quiet
    def end(self, error: Optional[BaseException] = None) -> None:
        """Stops the clock, as leaving the block does. A second call has no effect."""
        now = self._service.now()
        with self._lock:
            if self._over or self._begun is None:
                return
            self._over = True
            text = None if self._text is None else "".join(self._text)
        self.metrics.running.labels(self._model).dec()
        outcome = self._outcome or _outcome(error)  # an outcome set by the service wins
        self.metrics.requests.labels(self._model, self._tenant, outcome).inc()
        if outcome != "rejected":
            self.metrics.seconds.labels(self._model, self._tenant).observe(max(0.0, now - self._begun))
        if self._output > 1 and self._first is not None and self._last is not None:
            gap = (self._last - self._first) / (self._output - 1)
            self.metrics.per_token.labels(self._model).observe(max(0.0, gap))
        if text is not None and outcome == "ok":
            self._judge(text)

    def _judge(self, text: str) -> Optional[str]:
        reason = check(text)
        self.metrics.answers.labels(self._model, self._tenant).inc()
        if reason is not None:
            self.metrics.invalid.labels(self._model, self._tenant, reason).inc()
        return reason

    @quiet
    def enter(self) -> None:
        """Makes this the current request of the running code."""
        self._entered = _current.set(self)

    @quiet
    def leave(self) -> None:
        """Restores the previous current request."""
        entered, self._entered = self._entered, None
        if entered is not None:
            _current.reset(entered)

    def __enter__(self) -> Request:
        self.begin()
        self.enter()
        return self

    def __exit__(
        self, _kind: Optional[type[BaseException]], error: Optional[BaseException], _trace: Optional[TracebackType]
    ) -> None:
        self.leave()
        self.end(error)

    async def __aenter__(self) -> Request:
        return self.__enter__()

    async def __aexit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.__exit__(kind, error, trace)


class Stage:
    """Times a stage of a request, for ``with`` and ``async with``."""

    def __init__(self, service: ModelService, model: str, name: str) -> None:
        """Starts on entry."""
        self._service = service
        self.metrics = service.metrics
        self._labels = model, name
        self._begun: Optional[float] = None

    @quiet
    def _begin(self) -> None:
        self._begun = self._service.now()
        self.metrics.stage_running.labels(*self._labels).inc()

    @quiet
    def _end(self) -> None:
        if self._begun is not None:
            begun, self._begun = self._begun, None
            self.metrics.stage_running.labels(*self._labels).dec()
            self.metrics.stage_seconds.labels(*self._labels).observe(max(0.0, self._service.now() - begun))

    def __enter__(self) -> Stage:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    async def __aenter__(self) -> Stage:
        self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()


def _outcome(error: Optional[BaseException]) -> str:
    if error is None:
        return "ok"
    if isinstance(error, _CANCELS):
        return "cancelled"
    status = getattr(error, "status_code", None)
    return "rejected" if isinstance(status, int) and 400 <= status < 500 else "error"
