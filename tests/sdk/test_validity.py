"""Invalid answers are distinguished from unusual ones."""

import json
import random

import pytest
from outrider_sdk import check

ENGLISH = (
    "The engine holds the keys and values of every token it has seen, so that the next one costs a single pass. "
    "When the cache is full, requests wait or are thrown out and computed anew, which users see as a pause. "
    "A larger cache, shorter prompts or another replica each help, and they cost very different amounts of money. "
)
CHINESE = "推理引擎保存每个已处理词元的键和值,因此生成下一个词元只需要一次前向计算。当缓存已满时,新的请求需要等待。"


def noise(count):
    return bytes(random.Random(7).randrange(256) for _ in range(count)).decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["", "   \n\t ", "\u3000"])
def test_white_space_is_empty(text):
    assert check(text) == "empty"


@pytest.mark.parametrize(
    "text",
    [
        noise(400),
        "a\ufffd\ufffd\ufffd b",
        "\x00\x01\x02\x03 data",
        "\ue000" * 20 + ENGLISH[:100],
        "ok \ud800\udfff\ud800",
    ],
)
def test_binary_output_is_garbled(text):
    assert check(text) == "garbled"


@pytest.mark.parametrize(
    "text",
    [
        "the same thing " * 60,
        ENGLISH + "and then again " * 200,
        "哈" * 300,
        CHINESE * 20,
        "a" * 500,
        ("one two three four five six seven eight nine ten " * 40),
        "ab" * 400,
    ],
)
def test_a_loop_is_repeated(text):
    assert check(text) == "repeated"


@pytest.mark.parametrize(
    "text",
    [
        "Yes.",
        "42",
        "好",
        ENGLISH,
        CHINESE,
        ENGLISH + CHINESE,
        "no no no no no",
        "naïve café, Ελληνικά, العربية, हिन्दी 😀👩‍💻",
        "\x1b[31mred\x1b[0m text",
        "\n".join(f"| row {n} | value {n * 7} | note {n % 5} |" for n in range(60)),
        "\n".join(f"def test_{n}():\n    assert f({n}) == {n * n}\n" for n in range(50)),
        ", ".join(str(n) for n in range(400)),
        "x\ufffd",
        json.dumps([{"id": n} for n in range(200)]),
    ],
)
def test_ordinary_answers_are_valid(text):
    assert check(text) is None


def test_only_head_and_tail_of_a_long_answer_are_checked():
    words = random.Random(3)
    long = " ".join(str(words.random()) for _ in range(50_000))
    assert check(long) is None
    assert check(long + " loop and loop and" * 300) == "repeated"
