"""Every command of ``outrider capacity`` on invalid, unusual or missing input: one row per case.

An error is one sentence that names the thing, with a hint for the next step and exit code 2 (3 if a dependency is
unavailable). Unusual but valid input is processed.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.service.cli.test_cli import run
from tests.support.ports import free_port

BEGIN = datetime(2026, 5, 4, tzinfo=UTC)
SLOTS = 7 * 144
HEAD = "time_utc,requests_per_second\n"


def instants(begin: datetime = BEGIN, count: int = SLOTS, minutes: int = 10) -> list[datetime]:
    return [begin + timedelta(minutes=minutes * place) for place in range(count)]


def utc(times: Iterable[datetime]) -> list[str]:
    return [f"{at:%Y-%m-%dT%H:%M:%SZ}" for at in times]


def wave(count: int = SLOTS) -> list[str]:
    return [f"{40 + 30 * math.sin(2 * math.pi * place / 144):.2f}" for place in range(count)]


def table(times: Sequence[str], values: Sequence[object]) -> str:
    return HEAD + "".join(f"{at},{value}\n" for at, value in zip(times, values, strict=True))


def at_50(value: str) -> str:
    """A week whose line 52 is wrong."""
    return table(utc(instants()), [*wave()[:50], value, *wave()[51:]])


def berlin(begin: datetime) -> list[str]:
    return [at.astimezone(ZoneInfo("Europe/Berlin")).strftime("%Y-%m-%d %H:%M:%S") for at in instants(begin)]


TIMES, WEEK = utc(instants()), table(utc(instants()), wave())
SPIKE = table(TIMES, [float(value) * (100 if place == 900 else 1) for place, value in enumerate(wave())])
FILES: dict[str, str | bytes] = {
    "empty.csv": "",
    "header.csv": HEAD,
    "columns.csv": "a,b\n1,2\n",
    "semicolons.csv": HEAD.replace(",", ";") + "2026-05-04T00:00:00Z;1\n",
    "decimals.csv": HEAD + "2026-05-04T00:00:00Z,1,5\n",
    "binary.csv": bytes(range(256)) * 4,
    "bom.csv": "\ufeff" + WEEK,
    "one.csv": table(TIMES[:1], [5]),
    "day.csv": table(TIMES[:144], wave(144)),
    "week.csv": WEEK,
    "constant.csv": table(TIMES, [40] * SLOTS),
    "zero.csv": table(TIMES, [0] * SLOTS),
    "nan.csv": table(TIMES, ["nan"] * SLOTS),
    "gaps.csv": table([*TIMES[:300], *TIMES[500:]], [*wave()[:300], *wave()[500:]]),
    "twice.csv": table([*TIMES[:300], *TIMES[299:]], [*wave()[:300], *wave()[299:]]),
    "shuffled.csv": table(TIMES[::-1], wave()),
    "spike.csv": SPIKE,
    "negative.csv": at_50("-5"),
    "infinite.csv": at_50("inf"),
    "huge.csv": at_50("1e308"),
    "word.csv": at_50("many"),
    "unit.csv": at_50("40 tokens"),
    "instant.csv": table(["soon"], [1]),
    "no_offset.csv": table([at[:-1] for at in TIMES], wave()),
    "spring.csv": table(
        [at.astimezone(ZoneInfo("Europe/Berlin")).isoformat() for at in instants(datetime(2026, 3, 25, tzinfo=UTC))],
        wave(),
    ),
    "autumn_local.csv": table(berlin(datetime(2026, 10, 21, tzinfo=UTC)), wave()),
    "seven_minutes.csv": table(utc(instants(count=2000, minutes=7)), wave(2000)),
    "object.json": "{}",
    "cut.json": '[\n{"name":',
    "nothing.json": "[]",
    "word.json": '[{"name": "a", "queued_tokens": "many", "tokens_per_second": 1}]',
    "nan.json": '[{"name": "a", "queued_tokens": NaN, "tokens_per_second": 1}]',
    "still.json": '[{"name": "a", "queued_tokens": 1, "tokens_per_second": 0}]',
    "twice.json": json.dumps([{"name": "a", "queued_tokens": 1, "tokens_per_second": 1}] * 2),
    "fleet.json": json.dumps([{"name": name, "queued_tokens": 1, "tokens_per_second": 10} for name in "ab"]),
    "full.json": '[{"name": "a", "queued_tokens": 1, "tokens_per_second": 10, "kv_ratio": 0.99}]',
    "broken.yaml": "services:\n  - name: chat\n   floor: 3\n",
    "key.yaml": "services:\n  - name: chat\n    flor: 3\n",
    "value.yaml": "services:\n  - name: chat\n    quota_gpus: many\n",
    "below.yaml": "services:\n  - name: chat\n    quota_gpus: -1\n",
    "unit.yaml": "services:\n  - name: chat\n    tokens_per_second_per_sequence: 25 gpus\n",
    "kind.yaml": "planner:\n  scaling:\n    emit:\n      - {service: chat, type: hpaa}\n",
    "currency.yaml": "gpus:\n  - {type: H100, currency: CNY}\n",
    "currencies.yaml": "gpus:\n  - {type: H100, price_per_gpu_hour: 20, currency: CNY}\n  - {type: A100}\n",
    "no_quota.yaml": "gpus:\n  - {type: H100, quota: 0}\n",
    "unreachable.yaml": "store: {url: 'postgresql://127.0.0.1:PORT/x'}\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("odd")
    for name, content in FILES.items():
        whole = content if isinstance(content, bytes) else content.replace("PORT", str(free_port())).encode()
        (found / name).write_bytes(whole)
    (found / "folder").mkdir()
    return found


FORMULA = "formula --qps 40 --tokens 300 --batch 32 --tokens-per-second 25"
COST = "cost --model Llama-3.1-8B --gpu H100 --prompt 600 --tokens 250 --qps 40"
POOLS = "disaggregated --model Llama-3.1-70B --gpu H100 --qps 20 --prompt 3000 --tokens 200"
FIT = "fit --model Llama-3.1-8B --gpu H100"
BUY = "buy --per-gpu 2 --held-price 1 --burst-price 2 --csv"
BALANCE = "balance --file fleet.json"
WARM = "warm --service chat --phase pull=5 --image vllm:v1"
DEAD = "calibrate --endpoint http://127.0.0.1:PORT"

REFUSED = [
    # loads of a file, whoever reads them
    *((f"{command} {file}.csv", message) for command in (BUY, "replay", "strategies") for file, message in (
        ("missing", r"missing\.csv cannot be read: No such file"),
        ("binary", r"binary\.csv cannot be read: .*is not valid UTF-8"),
        ("empty", r"empty\.csv is empty"),
        ("header", r"header\.csv (holds no load|has no load values)"),
        ("columns", r"columns\.csv: columns time_utc and requests_per_second are missing"),
        ("semicolons", r"semicolons\.csv: columns"),
        ("decimals", r"decimals\.csv:2: more values than columns"),
        ("negative", r"negative\.csv:52: invalid load -5"),
        ("infinite", r"infinite\.csv:52: invalid load inf"),
        ("huge", r"huge\.csv:52: invalid load 1e\+308"),
        ("word", r"word\.csv:52: 'many' is not a load"),
        ("unit", r"unit\.csv:52: '40 tokens' is not a load"),
        ("instant", r"instant\.csv:2: 'soon' is not a valid timestamp"),
        ("nan", r"nan(\.csv (holds no load|has no load values)|: no slot has a value)"),
        ("no_offset", r"no_offset\.csv:2: .* has no time zone"),
        ("autumn_local", r"autumn_local\.csv:2: .* has no time zone"),
        ("one", r"less than a week|one\.csv has only one slot"),
        ("day", r"less than a week|days are not enough to replay"),
    )),
    (f"{BUY} folder", "folder cannot be read: Is a directory"),
    *((f"{command} {file}.csv", message) for command in ("replay", "strategies") for file, message in (
        ("zero", "the load is always 0"),
        ("twice", r"twice\.csv:302: timestamps must rise"),
        ("shuffled", r"shuffled\.csv:3: timestamps must rise"),
        ("seven_minutes", "a slot of 0:07:00 cannot be replayed"),
    )),
    *((f"{command} week.csv --startup {text}", "--startup") for command in ("replay", "strategies")
      for text in ("-5m", "soon", "0s", "2h")),
    ("strategies week.csv --cold-start soon", "--cold-start: 'soon' is not a duration"),
    # formula
    (f"{FORMULA} --qps -1", "--qps must not be negative"),
    (f"{FORMULA} --qps nan", "--qps: 'nan' is not a number"),
    (f"{FORMULA} --qps 1e308", "the load is too large to compute"),
    (f"{FORMULA} --qps 40_tokens", "--qps: '40 tokens' is in token, expected request/second"),
    (f"{FORMULA} --tokens-per-second 25_gpus", r"is in gpu, expected token/\(second"),
    (f"{FORMULA} --batch 0", "--batch must be above 0"),
    (f"{FORMULA} --buffer 25", "--buffer is a ratio up to 1, not 25"),
    (f"{FORMULA} --tp 0", "--tp must be a whole number of GPUs"),
    (f"{FORMULA} --qps 1,000", "'1,000' has a comma"),
    ("formula --qps 40", "Missing option '--batch'"),
    ("formula --qps 40 --batch 3", "give the work of one request"),
    # cost
    *((f"{COST} {option}", message) for option, message in (
        ("--qps -1", "--qps is -1"), ("--qps 1e300", r"--qps is 1e\+300"), ("--mean-qps -5", "--mean-qps is -5"),
        ("--qps 40_tokens", "is in token, expected request/second"), ("--buffer 25", "--buffer is a ratio"),
        ("--spot-ratio 5", "--spot-ratio is a ratio"), ("--cached 2", "invalid cached ratio 2"),
        ("--utilisation 0", "invalid memory utilization 0"), ("--bits 0", "--bits must be"),
        ("--bits 7", "--bits must be one of 16, 8, 4, not 7"),
        ("--kv-bits 3", "--kv-bits must be"), ("--ttft 0s", "--ttft must be"),
        ("--ttft 500", "--ttft: a bare number is in seconds, and 500 s"), ("--tpot 60", "--tpot: a bare number"),
        ("--prompt 0", "at least one token"), ("--prompt 1e9", "131072 tokens"),
        ("--within soon", "--within: 'soon'"), ("--gpu V9000", "unknown GPU type 'V9000'"),
        ("--gpu H1000", "unknown GPU type 'H1000'"),
        ("--model Nope", "unknown model 'Nope'"), ("--losses -1", "--losses"),
        ("--config missing.yaml", r"missing\.yaml does not exist"),
        ("--config broken.yaml", r"broken\.yaml:3: \(syntax\): not valid YAML"),
        ("--config key.yaml", r"key\.yaml:3: services\[0\]\.flor: unknown key; did you mean \"floor\""),
        ("--config value.yaml", r"value\.yaml:3: services\[0\]\.quota_gpus: expected a whole number, not 'many'"),
        ("--config below.yaml", r"below\.yaml:3: services\[0\]\.quota_gpus: expected at least 0, not -1"),
        ("--config unit.yaml", r"unit\.yaml:3: .*gpu.*token/\(second\*sequence\)"),
        ("--config currency.yaml", "price_per_gpu_hour is missing for CNY"),
        ("--gpu A100 --config currencies.yaml", "prices in CNY and USD cannot be compared"),
        ("--config-json missing.json", r"missing\.json cannot be read: No such file"),
        ("--config-json cut.json", r"cut\.json:2: not valid JSON"),
        ("--config-json nothing.json", r"nothing\.json is not a JSON object"),
        ("--config-json object.json", "num_hidden_layers must be"),
    )),
    # fit and disaggregated
    (f"{FIT} --bits 0", "--bits must be"),
    (f"{FIT} --bits nan", "--bits must be"),
    (f"{FIT} --context 0", "--context"),
    (f"{POOLS} --qps -1", "-1 requests/s"),
    (f"{POOLS} --buffer 30", "a buffer of 30"),
    (f"{POOLS} --link 0", "--link must be above 0"),
    (f"{POOLS} --link 5_tokens", "is in token, expected byte/second"),
    (f"{POOLS} --prefill-tp 0", "--prefill-tp must be 1 or more"),
    (f"{POOLS} --prefill-tp 64", "a node has 8 GPUs"),
    # calibrate
    ("calibrate --service nobody", "no service is named 'nobody'"),
    ("calibrate --from-store --show", "exclude each other"),
    ("calibrate --span soon", "--span: 'soon'"),
    ("calibrate --endpoint nowhere", "is not a URL"),
    (f"{DEAD} --steps 4,2", "--steps '4,2' must rise"),
    (f"{DEAD} --prompt 0", "--prompt is 0"),
    (f"{DEAD} --tokens 0", "--tokens must be above 0"),
    (f"{DEAD} --tokens 5_requests", "is in request, expected token/request"),
    (f"{DEAD} --token-file missing", "the token file missing cannot be read"),
    ("calibrate --import missing.json", "cannot be read: No such file"),
    ("calibrate --import object.json", "is not a result of vllm bench serve, LLMPerf or K6"),
    ("calibrate --import nothing.json", "nothing.json has no result"),
    ("calibrate --import binary.csv", "is not valid UTF-8"),
    ("calibrate --import week.csv", r"week\.csv:1: not JSON"),
    # buy
    ("buy", "which service"),
    ("buy --service nobody", "no service is named 'nobody'"),
    (f"{BUY} week.csv --service chat", "--csv and --service exclude each other"),
    (f"{BUY} week.csv --per-gpu 0", "--csv needs --per-gpu above 0"),
    (f"{BUY} week.csv --per-gpu 1e-300", "GPUs are needed in one hour"),
    (f"{BUY} week.csv --per-gpu 2_tokens", "is in token, expected request/second"),
    (f"{BUY} week.csv --weeks 52", "invalid period: 52 weeks"),
    (f"{BUY} week.csv --held-price -1", "--held-price must be 0 or more, not -1"),
    (f"{BUY} week.csv --burst-price 0", "--burst-price must be above 0, not 0"),
    (f"{BUY} week.csv --weeks 1", "invalid period: 1 week"),
    (f"{BUY} week.csv --held-price nan", "--held-price: nan is not a number"),
    ("buy --per-gpu 2 --csv week.csv", "no GPU price is known"),
    # balance
    ("balance", "which service"),
    ("balance --file missing.json", "cannot be read: No such file"),
    ("balance --file cut.json", r"cut\.json:2: not JSON"),
    ("balance --file object.json", "is not a list of replicas"),
    ("balance --file nothing.json", "is not a list of replicas"),
    ("balance --file word.json", "queued_tokens must be a number"),
    ("balance --file nan.json", "out of range"),
    ("balance --file still.json", "invalid speed 0 tokens/s"),
    ("balance --file twice.json", "two replicas are named 'a'"),
    (f"{BALANCE} --service chat", "--file and --service exclude each other"),
    (f"{BALANCE} --tokens 0", "--tokens must be 1 or more"),
    (f"{BALANCE} --arriving -1", "invalid arrival rate -1 tokens/s"),
    (f"{BALANCE} --arriving 1e300", r"invalid arrival rate 1e\+300 tokens/s"),
    (f"{BALANCE} --arriving 5_gpus", "is in gpu, expected token/second"),
    (f"{BALANCE} --watermark 90", "--watermark is a ratio"),
    (f"{BALANCE} --prefill -1", "--prefill must be 0 s or more"),
    # emit, plan and warm
    ("emit --service nobody", "no service is named 'nobody'"),
    ("emit --format hpaa", "'hpaa' is not a format"),
    ("emit --format ,", "--format is empty"),
    ("emit --send", "no receiver is configured"),
    ("emit --for-real", "--for-real requires --send"),
    ("emit --config kind.yaml", r"kind\.yaml:4: planner\.scaling\.emit\[0\]\.type: expected 'hpa'"),
    ("emit --config folder", "folder cannot be read: Is a directory"),
    ("plan --at yesterday", "--at: 'yesterday' is not a valid timestamp"),
    ("plan --service nobody", "no service is named 'nobody'"),
    ("warm --service chat --phase pull=nan", "is not PHASE=SECONDS"),
    ("warm --service chat --phase pull=5 --documents folder", "folder cannot be written: Is a directory"),
    (f"{WARM} --pre-pull cron", "--pre-pull 'cron' is not known"),
    (f"{WARM} --pre-pull job", "pre-pull Jobs need nodes, but none is known"),
    (f"{WARM} --node a --nodes 2", "--node and --nodes exclude each other"),
    (f"{WARM} --pre-pull daemonset --nodes 2", "a DaemonSet selects its nodes itself"),
    ("warm --service chat --phase pull=5 --node a", "no image given for the pre-pull"),
]  # fmt: skip
UNAVAILABLE = [
    (DEAD, "does not answer: "),
    ("plan --config unreachable.yaml", "does not answer"),
    ("emit --config unreachable.yaml", "does not answer"),
    ("calibrate --config unreachable.yaml", "does not answer"),
    ("buy --service chat --config unreachable.yaml", "does not answer"),
]
ANSWERED = [
    (f"{BUY} week.csv", 0, '"held_gpus": 2'),
    (f"{BUY} bom.csv", 0, '"held_gpus": 2'),
    (f"{BUY} spring.csv", 0, '"held_gpus": 2'),
    (f"{BUY} gaps.csv", 0, '"held_gpus": 2'),
    (f"{BUY} twice.csv", 0, '"held_gpus": 2'),
    (f"{BUY} shuffled.csv", 0, '"held_gpus": 2'),
    (f"{BUY} constant.csv", 0, '"held_gpus": 20'),
    (f"{BUY} zero.csv", 0, '"held_gpus": 0'),
    (f"{BUY} spike.csv", 0, '"spikes": [\n    {\n      "at": "2026-05-10T06:00:00Z"'),
    (f"{BUY} week.csv --quota 0", 0, '"held_gpus": 0'),
    (f"{BUY} week.csv --held-price 3", 0, '"held_gpus": 0'),
    (f"{COST} --tpot 0.01ms", 1, '"slo_kept": false'),
    (f"{COST} --ttft 500s --tpot 60s", 0, '"slo_kept": true'),
    (f"{COST} --region nowhere", 1, '"reason": "region"'),
    ("cost --model Llama-3.1-8B --prompt 600 --tokens 250 --qps 40 --config no_quota.yaml", 1, '"reason": "quota"'),
    (f"{COST} --qps 0", 0, '"cost_per_hour": 0.0'),
    (f"{POOLS} --ttft 1ms", 1, '"kept": false'),
    (f"{FIT} --tp 3", 1, '"reason": "heads"'),
    (f"{FIT} --context 100000000", 1, '"reason": "context"'),
    (f"{FORMULA} --qps 0", 0, '"replicas": 0'),
    (f"{FORMULA} --qps 4000/min", 0, '"units_raw": 31.25'),
    ("balance --file full.json", 1, '"all_full"'),
    (f"{BALANCE} --arriving 1e9 --tokens 1", 0, '"by_wait"'),
    ("calibrate", 1, '"nothing_collected"'),
    ("emit", 0, '"documents": []'),
    ("plan", 0, "[]"),
]


def capacity(folder: Path, line: str):
    words = [word.replace("_", " ") if re.match(r"[0-9]+_[a-z]", word) else word for word in line.split()]
    words = [word.replace("PORT", str(free_port())) for word in words]
    return run("capacity", *words, "-o", "json", cwd=folder)


def refusal(done, code: int) -> str:
    assert done.returncode == code, done.stdout + done.stderr
    error = json.loads(done.stdout)["error"]
    for text in (error["message"], error["hint"]):
        assert text.strip(), error
        assert "\n" not in text
        assert "Errno" not in text
    assert "Traceback" not in done.stderr
    return str(error["message"])


@pytest.mark.parametrize(("line", "message"), REFUSED, ids=[line for line, _ in REFUSED])
def test_invalid_input_is_rejected_by_name(folder: Path, line: str, message: str) -> None:
    assert re.search(message, refusal(capacity(folder, line), 2))


@pytest.mark.parametrize(("line", "message"), UNAVAILABLE, ids=[line for line, _ in UNAVAILABLE])
def test_unavailable_servers_exit_with_3(folder: Path, line: str, message: str) -> None:
    if "--endpoint" in line and importlib.util.find_spec("locust") is None:  # its import patches this very process
        pytest.skip("missing: locust")
    assert message in refusal(capacity(folder, line), 3)


@pytest.mark.parametrize(("line", "code", "message"), ANSWERED, ids=[line for line, *_ in ANSWERED])
def test_unusual_input_is_processed(folder: Path, line: str, code: int, message: str) -> None:
    done = capacity(folder, line)
    assert done.returncode == code, done.stdout + done.stderr
    json.loads(done.stdout)
    assert message in done.stdout
