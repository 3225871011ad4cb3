"""The optional explainer: its requests, its responses, and that nothing depends on it."""

import json
import threading
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from detectors.rca import explanation, fault_catalogue
from outrider.errors import ConfigError
from outrider.testing import names
from outrider.testing.trouble import lost_gpu
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.config import settings as settings_file
from service.config.api_settings import ApiSettings
from service.config.explainer_settings import ExplainerSettings
from service.config.settings import Settings
from service.incidents.llm_narrative import LlmEndpoint, Narrative, NoExplainer, OpenAiExplainer
from service.wiring import alerting as wiring_alerting
from store.memory import MemoryMetricStore
from tests.service.api.test_api import Http
from tests.service.engine.test_cycle import World
from tests.support.waiting import until

REPLY = "The GPU was lost.\nCheck the bus first."


def answer_of(text):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


@contextmanager
def llm_server(body=b"", status=200, hold=None):
    """An HTTP server with one response for every request, sent after ``hold`` is set. Yields URL and requests."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            length = int(self.headers["content-length"])
            requests.append((self.path, dict(self.headers), json.loads(self.rfile.read(length))))
            if hold is not None:
                hold.wait(30)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1", requests
    finally:
        if hold is not None:
            hold.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def lost():
    """The explanation of a lost GPU."""
    (incident,) = lost_gpu(names.NOW, names.NOW - timedelta(minutes=8)).incidents
    return explanation.explain(incident, fault_catalogue.load())


def test_without_a_url_there_is_no_explainer(lost):
    assert wiring_alerting.explainer(Settings()).summarize(lost, "en") == Narrative(None, "off")


def test_the_model_receives_the_findings_as_text_and_the_key_of_the_file(lost, tmp_path):
    key = tmp_path / "key"
    key.write_text("first\n")
    with llm_server(answer_of(REPLY)) as (url, requests):
        explainer = OpenAiExplainer(LlmEndpoint(url, "llama", key))
        assert explainer.summarize(lost, "en") == Narrative(REPLY, "", "llama")
        key.write_text("second\n")
        explainer.summarize(lost, "zh")
    (path, headers, first), (_, later, second) = requests
    assert path == "/v1/chat/completions"
    assert (headers["authorization"], later["authorization"]) == ("Bearer first", "Bearer second")
    assert first["model"] == "llama"
    assert "GPU lost" in first["messages"][1]["content"]
    assert "docs/runbooks" not in first["messages"][1]["content"]
    assert "GPU 掉卡" in second["messages"][1]["content"]
    assert "中文" in second["messages"][0]["content"]


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        (b"<html>", 200, "unreadable"),
        (b"[]", 200, "unreadable"),
        (b'{"choices": []}', 200, "unreadable"),
        (answer_of(None), 200, "unreadable"),
        (answer_of(["a"]), 200, "unreadable"),
        (answer_of("  \u0007 "), 200, "unreadable"),
        (answer_of("x" * 5000), 200, "unreadable"),
        (b"no", 500, "away"),
        (b"no", 401, "away"),
    ],
)
def test_an_unreadable_response_gives_no_text(lost, body, status, reason):
    with llm_server(body, status) as (url, _):
        expected = OpenAiExplainer(LlmEndpoint(url, "m")).summarize(lost, "en")
    assert (expected.text, expected.reason) == (None, reason)


def test_control_characters_are_removed(lost):
    with llm_server(answer_of("a\u001b[31mb\nc")) as (url, _):
        assert OpenAiExplainer(LlmEndpoint(url, "m")).summarize(lost, "en").text == "a[31mb\nc"


def test_an_unreachable_endpoint_and_a_missing_key_are_reported_as_away(lost, tmp_path):
    nobody = LlmEndpoint("http://127.0.0.1:9/v1", "m", timeout=timedelta(seconds=2))
    assert OpenAiExplainer(nobody).summarize(lost, "en").reason == "away"
    keyless = LlmEndpoint("http://127.0.0.1:9/v1", "m", tmp_path / "gone")
    assert OpenAiExplainer(keyless).summarize(lost, "en").reason == "away"


def test_an_endpoint_that_hangs_times_out_and_blocks_one_reader_only(lost):
    hold = threading.Event()
    with llm_server(answer_of(REPLY), hold=hold) as (url, requests):
        explainer = OpenAiExplainer(LlmEndpoint(url, "m", timeout=timedelta(seconds=1)))
        expected = []
        reader = threading.Thread(target=lambda: expected.append(explainer.summarize(lost, "en")))
        reader.start()
        until(lambda: requests, "the reader has sent its request")
        assert explainer.summarize(lost, "en").reason == "busy"
        reader.join(20)
        assert [one.reason for one in expected] == ["away"]
        hold.set()
        assert explainer.summarize(lost, "en").text == REPLY


class Platform:
    """A running platform with a dead replica, its API and its explainer."""

    def __init__(self, given: ExplainerSettings) -> None:
        settings = Settings(explainer=given)
        self.world = World(settings)
        extras = ApiExtras(clock=self.world.clock, explainer=wiring_alerting.explainer(settings))
        app = create_app(self.world.state, MemoryMetricStore(), ApiSettings(), extras)
        self.http = Http(app)

    def get(self, path):
        answer = self.http.get(f"/api/v1{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def story(self):
        """Breaks a replica and reads narratives. Returns these, and the incidents, actions and alerts at the end."""
        self.world.step(12)
        self.world.dead.add("a-1")
        self.world.step(8)
        (found,) = self.get("/incidents")["incidents"]
        narratives = [self.get(f"/incidents/{found['id']}/narrative") for _ in range(2)]
        self.world.step(8)
        state = self.world.state
        shown = {key: value for key, value in self.get(f"/incidents/{found['id']}").items() if key != "may_be_retold"}
        return narratives, (state.incidents(), state.actions(), state.alerts(limit=100), shown)


@pytest.mark.slow
def test_incidents_do_not_depend_on_the_explainer():
    short = timedelta(seconds=1)
    narratives, ends = {}, {}
    narratives["off"], ends["off"] = Platform(ExplainerSettings()).story()
    with llm_server(answer_of("It was the moon.")) as (url, requests):
        narratives["on"], ends["on"] = Platform(ExplainerSettings(url=url, model="m")).story()
        assert len(requests) == 1, "a response is cached until the incident changes"
    with llm_server(hold=threading.Event()) as (url, _):
        narratives["hung"], ends["hung"] = Platform(ExplainerSettings(url=url, model="m", timeout=short)).story()
    with llm_server(b"\x00\xff{") as (url, _):
        narratives["nonsense"], ends["nonsense"] = Platform(ExplainerSettings(url=url, model="m")).story()
    assert [narratives[name][0]["reason"] for name in narratives] == ["off", None, "away", "unreadable"]
    assert narratives["on"][0]["text"] == "It was the moon."
    assert ends["off"][0][0].suspected_cause is not None
    assert all(end == ends["off"] for end in ends.values())


def test_only_a_configured_explainer_is_offered():
    assert isinstance(wiring_alerting.explainer(Settings()), NoExplainer)
    given = ExplainerSettings(url="http://127.0.0.1:9/v1", model="m")
    assert isinstance(wiring_alerting.explainer(Settings(explainer=given)), OpenAiExplainer)


@pytest.mark.parametrize(
    ("text", "key", "expected"),
    [
        ("explainer: {url: ftp://x}", "explainer.url", "begins with http"),
        ("explainer: {url: http://x/v1}", "explainer.model", "is required"),
        ("explainer: {url: http://x/v1, model: m, timeout: 1h}", "explainer.timeout", ""),
        ("explainer: {url: http://x/v1, model: m, key: abc}", "explainer.key", "unknown key"),
    ],
)
def test_an_error_in_the_explainer_section_is_reported(tmp_path, text, key, expected):
    path = tmp_path / "outrider.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        settings_file.load(path)
    (problem,) = caught.value.problems
    assert (problem.key, problem.line) == (key, 1)
    assert expected in problem.message
