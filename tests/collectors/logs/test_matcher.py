"""Lines from any source: matched, counted, deduplicated per burst, redacted; start-up lines become marks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from collectors.events.unresolved_event import FIRST_LOOK, UnresolvedEvent
from collectors.kubernetes.startup_log import expressions, mark_of
from collectors.logs.matcher import SAME_BURST, LogMatcher, Origin
from collectors.logs.patterns import packaged
from outrider.model import EntityKind, EntityRef

AT = datetime(2026, 11, 18, 12, tzinfo=UTC)
POD = EntityRef("c", EntityKind.POD, "serving", "chat-0")
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB for bob@mail.example on 10.1.2.3"


def take(lines: LogMatcher, expected: str, ago: float = 0.0, uid: str = "p1") -> list[UnresolvedEvent]:
    return list(lines.take(Origin(POD, uid, "vllm"), AT - timedelta(seconds=ago), expected, AT))


def test_a_line_is_reported_redacted_on_its_replica() -> None:
    (seen,) = take(LogMatcher("loki"), OOM)
    assert (seen.code, seen.source, seen.aim, seen.entity) == ("cuda_oom", "loki", EntityKind.REPLICA, POD)
    assert seen.attributes["asked"] == "1.25 GiB"
    assert "bob" not in str(seen)
    assert "10.1.2.3" not in str(seen)
    assert (seen.attributes["pod"], seen.attributes["container"]) == ("chat-0", "vllm")


def test_a_burst_is_one_event_and_every_line_is_counted() -> None:
    lines = LogMatcher("loki")
    reported = [len(take(lines, OOM, ago)) for ago in (300, 299, 280, 230, 100)]
    assert reported == [1, 0, 0, 0, 1]  # each within a minute of the one before it, then a pause
    assert lines.counts["cuda_oom"] == 5
    assert take(lines, OOM, 0, uid="p2")[0].attributes.get("lines_before") is None
    again = take(lines, OOM, 0)
    assert again[0].attributes.get("lines_before") is None  # nothing left unreported since 100 s ago
    later = LogMatcher("loki")
    take(later, OOM, 300)
    take(later, OOM, 290)
    assert take(later, OOM, 200)[0].attributes["lines_before"] == "1"


def test_old_lines_are_counted_and_not_reported() -> None:
    lines = LogMatcher("loki")
    assert take(lines, OOM, FIRST_LOOK.total_seconds() + 60) == []
    assert lines.counts["cuda_oom"] == 1


def test_one_line_through_two_endpoints_has_one_key() -> None:
    (one,), (other,) = take(LogMatcher("engine_log"), OOM, 5), take(LogMatcher("loki"), OOM, 5, uid="other-identity")
    assert one.key == other.key
    assert SAME_BURST.total_seconds() == 60


def test_start_up_lines_are_marks_and_not_events() -> None:
    lines = LogMatcher("engine_log")
    assert take(lines, "Graph capturing finished in 8 secs, took 0.31 GiB") == []
    ((namespace, pod, mark),) = lines.drain_marks()
    assert (namespace, pod, mark.phase, mark.seconds) == ("serving", "chat-0", "graph_capture", 8.0)
    assert lines.drain_marks() == []


@pytest.mark.parametrize(
    ("expected", "phase", "seconds"),
    [
        # vLLM
        ("INFO 07-23 10:22:20 [default_loader.py:272] Loading weights took 3.22 seconds", "weight_load", 3.22),
        ("[gpu_model_runner.py:1801] Model loading took 14.2488 GiB and 5.173644 seconds", "weight_load", 5.173644),
        ("Model loading took 74.08 GiB memory and 35.612771 seconds", "weight_load", 35.612771),
        ("INFO [monitor.py:34] torch.compile takes 21.63 s in total", "compile", 21.63),
        ("torch.compile took 104.04 s in total", "compile", 104.04),
        ("[gpu_model_runner.py:3480] Graph capturing finished in 8 secs, took 0.31 GiB", "graph_capture", 8.0),
        ("[core.py:240] init engine (profile, create kv cache, warmup model) took 2.67 seconds", "init_engine", 2.67),
        ("init engine (profile, create kv cache, warmup model) took 87.24 s (compilation: 34.75 s)", "init_engine", 87.24),  # noqa: E501
        # SGLang
        ("Load weight end. elapsed=19.55 s, type=Qwen3_5MoeForConditionalGeneration, quant=gptq", "weight_load", 19.55),
        ("[2026-05-15 08:40:32 TP0] Capture cuda graph end. Time elapsed: 54.61 s. mem usage=1.93 GB.", "graph_capture", 54.61),  # noqa: E501
        ("Capture target decode CUDA graph end. elapsed=25.74 s, mem usage=2.66 GB", "graph_capture", 25.74),
        ("[2025-08-13 14:34:24 TP0] Load weight end. type=DeepseekV3ForCausalLM, dtype=torch.bfloat16", "weight_load", None),  # noqa: E501
        ("Load weight begin. avail mem=175.34 GB", "weight_load", None),
        # TGI
        ("INFO shard-manager: text_generation_launcher: Shard ready in 22.918174777s rank=0", "weight_load", 22.918174777),  # noqa: E501
    ],
)  # fmt: skip
def test_start_up_lines_of_engines(expected: str, phase: str, seconds: float | None) -> None:
    mark = mark_of(expected, AT)
    assert mark is not None
    assert (mark.phase, mark.seconds) == (phase, seconds)


def test_other_lines_are_not_marks() -> None:
    for expected in ("Loading weights took forever", "init engine took x s", "Shard ready", "", "took 3 s"):
        assert mark_of(expected, AT) is None


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        ("[2025-06-22 16:13:55 TP0] Watchdog timeout (self.watchdog_timeout=300)", "engine_dead"),
        ("[2026-02-27 15:27:13] Received sigquit from a child process. It usually means the child failed.", "worker_died"),  # noqa: E501
        ("ERROR shard-manager: Shard process was signaled to shutdown with signal 9 rank=0", "worker_died"),
        ("ERROR text_generation_launcher: Shard 0 failed to start", "load_failed"),
        ("Error: ShardCannotStart", "load_failed"),
        ("[TRT-LLM] [E] [_torch][RANK 7] Executor loop crashed on this rank; hard-killing all 8 ranks in 9.9s", "engine_dead"),  # noqa: E501
        ("RuntimeError: Executor worker returned error", "load_failed"),
        ("MPI_ABORT was invoked on rank 2 in communicator MPI_COMM_WORLD with errorcode 1.", "worker_died"),
        ("error: creating server: Internal - failed to load all models", "load_failed"),
        ("ERR: Failed to init endpoint! Please check the service log or console output.", "load_failed"),
        ("LLMInferEngine failed to init LLMInferModels", "load_failed"),
    ],
)  # fmt: skip
def test_failure_lines_of_other_engines(expected: str, code: str) -> None:
    result = packaged("engine_log").find(expected)
    assert result is not None
    assert result[0] == code


def test_every_expression_is_valid_in_loki() -> None:
    """RE2 supports neither look-around nor back-references."""
    for expression in (*expressions(), *(one.match.pattern for one in packaged("engine_log").table)):
        assert not any(part in expression for part in ("(?=", "(?!", "(?<=", "(?<!", "\\1", "(?P=")), expression
