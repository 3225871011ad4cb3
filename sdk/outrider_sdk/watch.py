"""The decorator: one request per call, for any kind of function."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union, cast

from outrider_sdk.quiet import note
from outrider_sdk.request import Request

if TYPE_CHECKING:
    from outrider_sdk.service import ModelService

F = TypeVar("F", bound=Callable[..., Any])
LabelSource = Union[str, Callable[..., Any], None]
Text = Optional[Callable[[Any], Optional[str]]]


def watched(service: ModelService, function: F, model: LabelSource, tenant: LabelSource, text: Text) -> F:
    """Wraps ``function`` as one request per call; each item of a generator is a token, and the items are the answer.

    ``model`` and ``tenant`` may be functions of the call's arguments, ``text`` a function of a returned or yielded
    value.
    """

    def request(arguments: Any, named: Any) -> Request:
        def label_of(source: LabelSource) -> Any:
            try:
                return source(*arguments, **named) if callable(source) else source
            except Exception as error:
                note(error, "watch", service.metrics)
                return None

        return service.request(model=label_of(model), tenant=label_of(tenant))

    def answer_text(result: Any) -> Optional[str]:
        try:
            results = text(result) if text is not None else result
        except Exception as error:
            note(error, "text", service.metrics)
            return None
        return results if isinstance(results, str) else None

    if inspect.isasyncgenfunction(function):
        wrapper: Callable[..., Any] = _of_async_generator(function, request, answer_text)
    elif inspect.isgeneratorfunction(function):
        wrapper = _of_generator(function, request, answer_text)
    elif inspect.iscoroutinefunction(function):
        wrapper = _of_coroutine(function, request, answer_text)
    else:
        wrapper = _of_function(function, request, answer_text)
    return cast("F", functools.wraps(function)(wrapper))


_Begin = Callable[[Any, Any], Request]
_AnswerText = Callable[[Any], Optional[str]]


def _of_function(function: Callable[..., Any], begin: _Begin, answer_text: _AnswerText) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        with begin(arguments, named) as request:
            result = function(*arguments, **named)
            _answer(request, answer_text(result))
            return result

    return call


def _of_coroutine(function: Callable[..., Any], begin: _Begin, answer_text: _AnswerText) -> Callable[..., Any]:
    async def call(*arguments: Any, **named: Any) -> Any:
        with begin(arguments, named) as request:
            result = await function(*arguments, **named)
            _answer(request, answer_text(result))
            return result

    return call


def _of_generator(function: Callable[..., Any], begin: _Begin, answer_text: _AnswerText) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Generator[Any, Any, Any]:
        request = begin(arguments, named)
        request.begin()
        generator = function(*arguments, **named)
        step: Callable[[], Any] = functools.partial(generator.send, None)
        try:
            while True:
                # Between two items other code runs in this context: the request is current only inside the generator.
                request.enter()
                try:
                    item = step()
                except StopIteration as done:
                    result = done.value
                    break
                finally:
                    request.leave()
                _piece(request, answer_text(item))
                try:
                    step = functools.partial(generator.send, (yield item))
                except GeneratorExit:
                    raise
                except BaseException as thrown:  # the inner generator may catch it
                    step = functools.partial(generator.throw, thrown)
        except BaseException as error:
            generator.close()
            request.end(error)
            raise
        request.end()
        return result

    return call


def _of_async_generator(function: Callable[..., Any], begin: _Begin, answer_text: _AnswerText) -> Callable[..., Any]:
    async def call(*arguments: Any, **named: Any) -> AsyncGenerator[Any, Any]:
        request = begin(arguments, named)
        request.begin()
        generator = function(*arguments, **named)
        step: Callable[[], Any] = functools.partial(generator.asend, None)
        try:
            while True:
                request.enter()
                try:
                    item = await step()
                except StopAsyncIteration:
                    break
                finally:
                    request.leave()
                _piece(request, answer_text(item))
                try:
                    step = functools.partial(generator.asend, (yield item))
                except GeneratorExit:
                    raise
                except BaseException as thrown:
                    step = functools.partial(generator.athrow, thrown)
        except BaseException as error:
            await generator.aclose()
            request.end(error)
            raise
        request.end()

    return call


def _answer(request: Request, text: Optional[str]) -> None:
    if text is not None:
        request.output(text)


def _piece(request: Request, text: Optional[str]) -> None:
    if text is None:
        request.tokens(1)
    else:
        request.piece(text)
