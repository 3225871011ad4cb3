"""Requests of a model service are counted exactly; errors of the SDK never reach it."""

import ast
import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from outrider_sdk import ModelService, current, metrics, quiet
from outrider_sdk.names import BusiestNames
from prometheus_client import CollectorRegistry

from collectors.mapping import registry as adapters
from outrider.vocabulary import catalog

SDK = Path(__file__).parents[2] / "sdk"


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class World:
    def __init__(self, **settings) -> None:
        self.clock, self.registry = Clock(), CollectorRegistry()
        self.service = ModelService("chat", registry=self.registry, model="m", now=self.clock, **settings)

    def value(self, name, **labels):
        return self.registry.get_sample_value(f"outrider_sdk_{name}", labels)

    def requests(self, outcome, tenant="none"):
        return self.value("requests_total", model="m", tenant=tenant, outcome=outcome) or 0.0


@pytest.fixture
def world() -> World:
    return World()


def test_a_request_is_counted_with_its_times_tokens_and_stages(world):
    with world.service.request(tenant="acme") as request:
        assert current() is request
        assert world.value("requests_in_progress", model="m") == 1
        request.input_tokens(7)
        with request.stage("queue"):
            assert world.value("stage_in_progress", model="m", stage="queue") == 1
            world.clock.seconds += 0.25
        with request.stage("made up"):
            world.clock.seconds += 0.25
        request.first_token()
        request.first_token()
        world.clock.seconds += 0.9
        request.tokens(10)
        assert request.output("The answer is 42.") is None
    who = {"model": "m", "tenant": "acme"}
    assert current() is None
    assert world.requests("ok", "acme") == 1
    assert world.value("requests_in_progress", model="m") == 0
    assert world.value("first_token_seconds_sum", **who) == pytest.approx(0.5)
    assert world.value("first_token_seconds_count", **who) == 1
    assert world.value("request_seconds_sum", **who) == pytest.approx(1.4)
    assert world.value("token_seconds_sum", model="m") == pytest.approx(0.1)
    assert world.value("tokens_total", **who, kind="input") == 7
    assert world.value("tokens_total", **who, kind="output") == 10
    assert world.value("stage_seconds_sum", model="m", stage="queue") == pytest.approx(0.25)
    assert world.value("stage_seconds_count", model="m", stage="other") == 1
    assert world.value("stage_in_progress", model="m", stage="queue") == 0
    assert world.value("answers_total", **who) == 1


class HttpError(Exception):
    def __init__(self, status_code) -> None:
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ValueError("x"), "error"),
        (HttpError(422), "rejected"),
        (HttpError(503), "error"),
        (asyncio.CancelledError(), "cancelled"),
        (GeneratorExit(), "cancelled"),
    ],
)
def test_the_exception_sets_the_outcome_and_propagates(world, error, outcome):
    with pytest.raises(type(error)), world.service.request():
        raise error
    assert world.requests(outcome) == 1
    assert world.value("requests_in_progress", model="m") == 0


def test_a_service_can_set_the_outcome(world):
    for method, outcome in (("fail", "error"), ("reject", "rejected")):
        with world.service.request() as request:
            getattr(request, method)()
        assert world.requests(outcome) == 1


def test_a_streamed_answer_is_checked_at_its_end(world):
    with world.service.request() as request:
        for _ in range(300):
            request.piece("the same again and again ")
    assert world.value("invalid_answers_total", model="m", tenant="none", reason="repeated") == 1
    with world.service.request() as request:
        request.piece("")
    assert world.value("invalid_answers_total", model="m", tenant="none", reason="empty") == 1
    assert world.value("answers_total", model="m", tenant="none") == 2


def test_a_long_stream_needs_bounded_memory(world):
    with world.service.request() as request:
        for number in range(20_000):
            request.piece(f"word{number} ")
        assert sum(map(len, request._text)) < 50_000
    assert world.value("answers_total", model="m", tenant="none") == 1
    assert world.value("invalid_answers_total", model="m", tenant="none", reason="repeated") is None


def test_the_decorator_counts_every_kind_of_function(world):
    watch = world.service.watch

    @watch(tenant=lambda prompt: prompt)
    def whole(prompt):
        assert current() is not None
        return f"echo {prompt}"

    @watch(tenant="b", text=lambda result: result["text"])
    async def task(prompt):
        await asyncio.sleep(0)
        return {"text": prompt}

    @watch(tenant="c")
    def pieces(prompt):
        assert current() is not None
        yield from prompt.split()
        return "done"

    @watch(tenant="d")
    async def stream(prompt):
        for word in prompt.split():
            assert current() is not None
            await asyncio.sleep(0)
            yield word

    async def drive():
        assert await task("x") == {"text": "x"}
        found = []
        async for word in stream("one two three"):
            assert current() is None  # between two pieces other code runs
            found.append(word)
        return found

    def outer():
        return (yield from pieces("one two"))

    assert whole("a") == "echo a"
    assert whole.__name__ == "whole"
    assert list(outer()) == ["one", "two"]
    assert asyncio.run(drive()) == ["one", "two", "three"]
    for tenant, tokens in (("a", None), ("b", None), ("c", 2), ("d", 3)):
        assert world.requests("ok", tenant) == 1
        assert world.value("tokens_total", model="m", tenant=tenant, kind="output") == tokens
        assert world.value("answers_total", model="m", tenant=tenant) == 1


def test_an_abandoned_stream_is_cancelled_and_closed(world):
    closed = []

    @world.service.watch()
    def pieces():
        try:
            yield "a"
            yield "b"
        finally:
            closed.append("sync")

    @world.service.watch()
    async def stream():
        try:
            yield "a"
            yield "b"
        finally:
            closed.append("async")

    async def leave():
        found = stream()
        assert await anext(found) == "a"
        await found.aclose()

    reader = pieces()
    assert next(reader) == "a"
    reader.close()
    asyncio.run(leave())
    assert closed == ["sync", "async"]
    assert world.requests("cancelled") == 2
    assert world.value("answers_total", model="m", tenant="none") is None


def test_send_and_throw_reach_the_inner_generator(world):
    @world.service.watch()
    def pieces():
        got = yield "first"
        try:
            yield f"got {got}"
        except KeyError:
            yield "caught"
        return "done"

    @world.service.watch()
    async def stream():
        got = yield "first"
        try:
            yield f"got {got}"
        except KeyError:
            yield "caught"

    found = pieces()
    assert [next(found), found.send("it"), found.throw(KeyError())] == ["first", "got it", "caught"]
    with pytest.raises(StopIteration) as caught:
        next(found)
    assert caught.value.value == "done"

    async def drive():
        found = stream()
        received = [await anext(found), await found.asend("it"), await found.athrow(KeyError())]
        with pytest.raises(StopAsyncIteration):
            await anext(found)
        return received

    assert asyncio.run(drive()) == ["first", "got it", "caught"]
    assert world.requests("ok") == 2


def test_an_endpoint_can_be_decorated_itself(world):
    app = FastAPI()

    @app.get("/answer/{number}")
    @world.service.watch(tenant=lambda number, prompt: prompt, text=lambda result: result["text"])
    async def answer(number: int, prompt: str = "none"):
        if number > 1:
            raise HTTPException(422)
        return {"text": prompt * number}

    async def ask(path):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.get(path)

    assert asyncio.run(ask("/answer/1?prompt=hi")).json() == {"text": "hi"}
    assert asyncio.run(ask("/answer/2")).status_code == 422
    assert asyncio.run(ask("/answer/x")).status_code == 422  # which never reached it
    assert world.requests("ok", "hi") == 1
    assert world.requests("rejected", "none") == 1


def test_a_failing_stream_is_an_error_and_propagates(world):
    @world.service.watch()
    def pieces():
        yield "a"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(pieces())
    assert world.requests("error") == 1


def test_errors_of_the_sdk_do_not_reach_the_service(world, monkeypatch, caplog):
    monkeypatch.setattr(quiet, "_logged", set())

    def broken(*_):
        raise RuntimeError("no counting today")

    for family in (world.service.metrics.requests, world.service.metrics.running, world.service.metrics.tokens):
        monkeypatch.setattr(family, "labels", broken)
    for _ in range(2):
        with world.service.request(tenant=object()) as request:
            request.tokens("many")
            request.tokens(3)
            request.output(None)
            request.piece(7)
            with request.stage("compute"):
                pass
    world.service.kpi("a", "not a number")

    @world.service.watch(tenant=lambda: 1 / 0, text=lambda _: 1 / 0)
    def answer():
        return "fine"

    assert answer() == "fine"
    assert world.value("faults_total") > 5
    assert "logged once" in caplog.text
    assert caplog.text.count("tokens: RuntimeError") == 1


def test_threads_and_tasks_keep_their_requests_apart(world):
    def work(tenant):
        for _ in range(200):
            with world.service.request(tenant=tenant) as request:
                assert current() is request
                request.tokens(1)

    threads = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    async def task(tenant):
        async with world.service.request(tenant=tenant) as request:
            await asyncio.sleep(0)
            assert current() is request
            async with request.stage("compute"):
                await asyncio.sleep(0)

    async def tasks():
        await asyncio.gather(*(task(f"a{number}") for number in range(8)))

    asyncio.run(tasks())
    assert sum(world.requests("ok", f"t{number}") for number in range(8)) == 1600
    assert sum(world.requests("ok", f"a{number}") for number in range(8)) == 8


def test_the_busiest_tenants_keep_their_names(world):
    world = World(tenants=2)
    for tenant in ("small", "big", "rest"):
        with world.service.request(tenant=tenant):
            pass
    assert world.requests("ok", "other") == 1
    for _ in range(600):
        with world.service.request(tenant="rest"):
            pass
    with world.service.request(tenant="small"):
        pass
    assert world.requests("ok", "rest") > 80
    page = world.service.page().decode()
    assert 'tenant="small"' not in page or 'tenant="big"' not in page
    assert sum(f'tenant="{name}",outcome="ok"' in page or f'outcome="ok",tenant="{name}"' in page
               for name in ("small", "big", "rest")) <= 2  # fmt: skip


def test_names_stay_few_and_memory_bounded():
    gone = []
    names = BusiestNames(5, gone.append)
    given = {names.name(f"tenant-{number}") for number in range(50_000)}
    assert given - {"other"} == {f"tenant-{number}" for number in range(5)} or len(given) < 60
    assert len(names._named) == 5
    assert len(names._counts) <= 50
    fixed = World(tenants=["acme"])
    for tenant in ("acme", "else"):
        with fixed.service.request(tenant=tenant):
            pass
    assert fixed.requests("ok", "acme") == fixed.requests("ok", "other") == 1


def test_a_registry_belongs_to_one_service(world):
    again = ModelService("chat", registry=world.registry)
    assert again.metrics is world.service.metrics
    with pytest.raises(ValueError, match="this registry belongs to 'chat'"):
        ModelService("other", registry=world.registry)
    with pytest.raises(ValueError, match="needs a name"):
        ModelService("", registry=CollectorRegistry())


def test_the_buckets_are_the_ladders_of_the_catalogue():
    assert catalog.signal("svc_ttft_seconds").bounds == metrics.FIRST_TOKEN
    assert catalog.signal("svc_tpot_seconds").bounds == metrics.PER_TOKEN
    assert catalog.signal("svc_latency_seconds").bounds == metrics.REQUEST


def test_the_adapter_reads_names_that_the_page_has(world):
    with world.service.request() as request:
        request.tokens(2)
        request.output("")
        with request.stage("queue"):
            pass
    world.service.feedback(up=True)
    world.service.kpi("k", 1.0)
    names = {sample.name for family in world.registry.collect() for sample in family.samples}
    assert adapters.adapter("sdk").metric_names <= names


def test_several_processes_are_one_page(tmp_path):
    script = (
        "import sys; from outrider_sdk import ModelService; service = ModelService('chat', model='m')\n"
        "if sys.argv[1] == 'page': print(service.page().decode())\n"
        "else:\n"
        "    with service.request(tenant='a') as r: r.tokens(3); r.output('')\n"
        "    service.kpi('k', 2.0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(SDK), "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def run(mode):
        done = subprocess.run(
            [sys.executable, "-c", script, mode], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    run("count")
    run("count")
    page = run("page")
    assert 'outrider_sdk_requests_total{model="m",outcome="ok",tenant="a"} 2.0' in page
    assert 'outrider_sdk_tokens_total{kind="output",model="m",tenant="a"} 6.0' in page
    assert 'outrider_sdk_kpi{kpi="k"} 2.0' in page


def test_the_code_runs_on_python_3_9():
    for path in (SDK / "outrider_sdk").glob("*.py"):
        ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
