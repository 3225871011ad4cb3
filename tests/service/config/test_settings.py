from datetime import timedelta

import pytest

from collectors.mapping import registry
from outrider.errors import ConfigError
from outrider.ports import StateRetention
from service.config import notify_settings, settings
from service.wiring.detectors import rules as wiring_rules
from store.tsdb.retention import Retention


def load(tmp_path, text):
    path = tmp_path / "outrider.yaml"
    path.write_text(text, encoding="utf-8")
    return settings.load(path)


def problems(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return [(problem.line, problem.key, problem.message) for problem in caught.value.problems]


OWN = """adapter: acme
target: replica
entities:
  replica: {target: true}
signals:
  engine_requests_running: {gauge: acme_running}
"""


@pytest.fixture
def known_adapters():
    """Removes adapters that a test registered."""
    before = dict(registry.ADAPTERS)
    yield registry.ADAPTERS
    registry.ADAPTERS.clear()
    registry.ADAPTERS.update(before)
    registry.adapter.cache_clear()


def test_own_adapters_are_relative_to_the_file_and_registered(tmp_path, known_adapters):
    (tmp_path / "acme.yaml").write_text(OWN, encoding="utf-8")
    target = "{name: a, adapter: acme, url: 'http://x/metrics', entity: {kind: replica, name: a}}"
    load(tmp_path, f"collect:\n  adapters: [acme.yaml]\n  targets: [{target}]\n")
    assert "acme" in known_adapters
    assert registry.adapter("acme").rules.keys() == {"engine_requests_running"}


def test_an_own_adapter_replaces_a_packaged_one(tmp_path, known_adapters):
    (tmp_path / "mine.yaml").write_text(OWN.replace("acme\n", "tgi\n"), encoding="utf-8")
    load(tmp_path, "collect: {adapters: [mine.yaml]}\n")
    assert registry.adapter("tgi").file.endswith("mine.yaml")


def test_errors_of_an_own_adapter_have_file_line_and_key(tmp_path, known_adapters):
    (tmp_path / "acme.yaml").write_text(OWN.replace("gauge:", "gage:"), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, "collect: {adapters: [acme.yaml]}\n")
    (first, *_) = caught.value.problems
    assert (first.line, first.key) == (6, "signals.engine_requests_running.gage")
    assert first.file.endswith("acme.yaml")
    assert "acme" not in known_adapters
    found = problems(tmp_path, "collect:\n  adapters:\n    - none.yaml\n")
    assert found[0][:2] == (3, "collect.adapters[0]")
    assert "cannot read adapter" in found[0][2]


def test_an_unknown_adapter_of_a_target_or_job_is_reported_with_its_line(tmp_path):
    target = "{name: a, adapter: vlm, url: 'http://x', entity: {kind: replica, name: a}}"
    text = f"collect:\n  targets:\n    - {target}\n  prometheus:\n    url: http://p\n    jobs: {{gpu: abacus}}\n"
    assert [(line, key) for line, key, _ in problems(tmp_path, text)] == [
        (3, "collect.targets[0].adapter"),
        (6, "collect.prometheus.jobs.gpu"),
    ]
    assert 'did you mean "vllm"?' in problems(tmp_path, text)[0][2]


def test_no_key_is_required(tmp_path):
    assert load(tmp_path, "") == settings.Settings()
    assert settings.load(None).store.url == "sqlite:///.outrider/outrider.db"
    assert settings.load(None).remediation.dry_run is True


def test_durations_are_read(tmp_path):
    assert load(tmp_path, "collect: {interval: 5s}").collect.interval == timedelta(seconds=5)


def test_errors_are_reported_in_line_order(tmp_path):
    found = problems(tmp_path, "stor: {url: a}\ncollect:\n  intervall: 5s\n  interval: 5 parsecs\n")
    assert found == [
        (1, "stor", 'unknown key; did you mean "store"?'),
        (3, "collect.intervall", 'unknown key; did you mean "interval"?'),
        (4, "collect.interval", "expected a duration such as 15s, 5m, 1h30m or 7d, not '5 parsecs'"),
    ]


def test_two_targets_may_not_share_a_name(tmp_path):
    target = "{name: a, adapter: vllm, url: 'http://x', entity: {kind: replica, name: a}}"
    found = problems(tmp_path, f"collect:\n  targets:\n    - {target}\n    - {target}\n")
    assert found == [(4, "collect.targets[1].name", "duplicate target name 'a'")]


def test_a_route_to_nobody_is_refused(tmp_path):
    assert problems(tmp_path, "notify:\n  groups: {im: [nobody]}\n")[0][:2] == (2, "notify.groups.im[0]")


def test_environment_variables_are_substituted_and_missing_ones_reported(tmp_path, monkeypatch):
    monkeypatch.setenv("CLUSTER", "blue")
    assert load(tmp_path, "cluster: ${CLUSTER}-1\n").cluster == "blue-1"
    monkeypatch.delenv("CLUSTER")
    assert problems(tmp_path, "cluster: ${CLUSTER}\n") == [(1, "cluster", "environment variable CLUSTER is not set")]


def test_not_a_mapping(tmp_path):
    assert "expected a mapping" in problems(tmp_path, "- a\n")[0][2]


def test_every_setting_is_documented():
    sections = [*settings.Section.__subclasses__(), notify_settings.ChannelSettings]
    undocumented = [
        f"{section.__name__}.{name}"
        for section in sections
        for name, field in section.model_fields.items()
        if not field.description
    ]
    assert undocumented == []


def test_a_game_day_needs_a_known_cluster_and_a_valid_window(tmp_path):
    days = "game_days:\n  - {name: a, faults: [gpu-lost], cluster: mian, window: 8d}\n"
    remediation = "cluster: main\nremediation: {actuator: simulated, control_url: 'http://x'}\n"
    assert problems(tmp_path, remediation + days) == [
        (4, "game_days[0].cluster", "no cluster is named 'mian'; did you mean \"main\"?"),
        (4, "game_days[0].window", "is out of range; expected more than 2m and less than 7d"),
    ]
    assert problems(tmp_path, days.replace("mian", "main").replace("8d", "1h"))[0][2].startswith(
        "needs a simulated fleet"
    )


def test_game_days_accept_the_cluster_of_a_simulated_fleet(tmp_path):
    path = tmp_path / "days.yaml"
    path.write_text("game_days:\n  - {name: a, faults: [gpu-lost], cluster: demo}\n", encoding="utf-8")
    assert [day.name for day in settings.load(path, fleet="demo").game_days] == ["a"]
    with pytest.raises(ConfigError, match="no cluster is named 'demo'"):
        settings.load(path, fleet="other")


def test_receive_rules_are_checked_with_line_numbers(tmp_path):
    file = tmp_path / "outrider.yaml"
    file.write_text(
        "receive:\n  rules:\n    - match: {job: '['}\n      adapter: vlm\n  silent_after: 2h\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError) as caught:
        settings.load(file)
    reported = [str(problem) for problem in caught.value.problems]
    assert any(":3: " in one and "is not a regular expression" in one for one in reported)
    assert any(":4: " in one and "unknown adapter 'vlm'" in one and "vllm" in one for one in reported)
    assert any("must be longer than silent_after" in one for one in reported)


def test_retention_of_values_is_read(tmp_path):
    text = (
        "store: {retention: {raw: 24h, ten_minutes: 14d, hours: 90d, hourly_tables: 0s, size_limit_bytes: 5000000000}}"
    )
    kept = load(tmp_path, text).store.retention.retention
    assert (kept.raw, kept.ten_minutes) == (timedelta(days=1), timedelta(days=14))
    assert (kept.hours, kept.hourly_tables, kept.size_bytes) == (timedelta(days=90), timedelta(0), 5_000_000_000)
    assert load(tmp_path, "{}").store.retention.retention == Retention()


def test_tiers_with_a_gap_are_refused_with_their_line(tmp_path):
    text = "store:\n  retention:\n    raw: 30m\n    ten_minutes: 3d\n    hours: 2d\n"
    assert problems(tmp_path, text) == [
        (3, "store.retention.raw", "is too short; expected at least 1h"),
        (5, "store.retention.hours", "is shorter than ten_minutes; expected at least as long"),
    ]
    assert problems(tmp_path, "store: {retention: {size_limit_bytes: 5}}")[0][1] == "store.retention.size_limit_bytes"
    assert problems(tmp_path, "store:\n  retention:\n    decisions: 3d\n") == [
        (3, "store.retention.decisions", "is too short; expected at least 7d")
    ]


def test_retention_of_decisions_is_read(tmp_path):
    kept = load(tmp_path, "store: {retention: {decisions: 90d, forecasts: 30d}}").store.retention.of_state
    assert kept == StateRetention(decisions=timedelta(days=90), forecasts=timedelta(days=30))
    assert load(tmp_path, "{}").store.retention.of_state == StateRetention()


def test_all_errors_are_reported_at_once(tmp_path):
    bad = "{name: a, adapter: vlm, url: 'http://x', entity: {kind: replica, name: a}}"
    odd = "{name: a, adapter: vllm, url: 'x:8000', entity: {kind: replica, name: a}}"
    text = (
        f"collect:\n  targets:\n    - {bad}\n    - {odd}\n  page_limit_bytes: 10MB\n"
        "probes:\n  - {type: http, service: chat, url: 'http://x', matches: '('}\n"
        "notify:\n  groups: {im: [nobody]}\n"
    )
    assert {(line, key) for line, key, _ in problems(tmp_path, text)} == {
        (3, "collect.targets[0].adapter"),
        (4, "collect.targets[1].name"),
        (4, "collect.targets[1].url"),
        (5, "collect.page_limit_bytes"),
        (7, "probes[0].matches"),
        (9, "notify.groups.im[0]"),
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("collect: {page_limit_bytes: 10MB}", "expected a whole number, not '10MB'; in bytes it is 10000000"),
        ("collect: {page_limit_bytes: 64MiB}", "in bytes it is 67108864"),
        ("collect: {page_limit_series: many}", "expected a whole number, not 'many'"),
        ("collect: {prometheus: {url: 'p:9090'}}", "begins with http:// or https://, not 'p:9090'"),
        ("cluster: a/b", "expected a name without a slash, not 'a/b'"),
        ("cluster: 7", "expected text, not 7; put it in quotes"),
        ("store: {stand_by: perhaps}", "expected true or false, not 'perhaps'"),
        ("collect: [a]", "expected a mapping of keys, not a list"),
        ("collect: {targets: {a: b}}", "expected a list, not a mapping"),
        ("log: {level: loud}", "expected 'debug', 'info', 'warning', 'error', not 'loud'"),
        ("api: {port: 70000}", "expected at most 65535, not 70000"),
        ("collect: {page_limit_series: 0}", "expected more than 0, not 0"),
    ],
)
def test_messages_state_the_expected_value_in_plain_words(tmp_path, text, expected):
    ((_, _, message),) = problems(tmp_path, text + "\n")
    assert expected in message
    for jargon in ("pattern", "parse", "interpret", "Input", "input should"):
        assert jargon not in message


def test_probable_mistakes_are_warnings(tmp_path):
    one = "name: {}, adapter: vllm, url: 'http://x', entity: {{kind: replica, name: a}}, labels: {{{}: n, team: t}}"
    text = "".join(f"    - {{{one.format(*pair)}}}\n" for pair in (("a", "nod"), ("b", "node")))
    (tmp_path / "outrider.yaml").write_text(f"collect:\n  targets:\n{text}", encoding="utf-8")
    found, problems_, doubts = settings.review(tmp_path / "outrider.yaml")
    assert found is not None
    assert problems_ == []
    assert [(one.line, one.key) for one in doubts] == [
        (3, "collect.targets[0].labels.nod"),
        (4, "collect.targets[1].url"),
    ]
    assert 'did you mean "node"?' in doubts[0].message
    assert "collect.targets[0]" in doubts[1].message


def test_a_gpu_type_without_a_data_sheet_is_a_warning(tmp_path):
    types = ("H100", "H1000", "NVIDIA H100 80GB HBM3", "unknown")
    text = "".join(f"  - {{name: s{place}, gpu_type: {kind}}}\n" for place, kind in enumerate(types))
    (tmp_path / "outrider.yaml").write_text(f"services:\n{text}", encoding="utf-8")
    _, problems_, doubts = settings.review(tmp_path / "outrider.yaml")
    assert problems_ == []
    assert [(one.line, one.key) for one in doubts] == [(3, "services[1].gpu_type")]
    assert "H100" in doubts[0].message.split(";")[1]


@pytest.mark.parametrize("content", [b"\x7fELF\x00\x01\xff", "cluster: c".encode("utf-16"), b"a: \x00b"])
def test_a_file_that_is_not_utf8_is_refused(tmp_path, content):
    (tmp_path / "outrider.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match="is not valid UTF-8") as caught:
        settings.load(tmp_path / "outrider.yaml")
    assert caught.value.hint


def test_a_byte_order_mark_is_ignored(tmp_path):
    (tmp_path / "outrider.yaml").write_bytes(b"\xef\xbb\xbfcluster: c\n")
    assert settings.load(tmp_path / "outrider.yaml").cluster == "c"


def test_contradicting_services_and_scaling_receivers_are_refused(tmp_path):
    text = """services:
  - {name: chat}
  - {name: chat}
planner:
  scaling:
    emit:
      - {service: chat, type: hpa}
      - {service: chat, type: deployment}
      - {service: chta, type: kustomize}
      - {service: chat, type: webhook}
"""
    found = problems(tmp_path, text)
    assert [line for line, _, _ in found] == [3, 8, 9, 10]
    expected = [message for _, _, message in found]
    assert "duplicate service name 'chat'" in expected[0]
    assert "only one may act" in expected[1]
    assert "chat" in expected[2]
    assert "required by a webhook" in expected[3]


def test_a_ceiling_and_a_quota_of_zero_are_accepted(tmp_path):
    (service,) = load(tmp_path, "services:\n  - {name: chat, floor: 0, ceiling: 0, quota_gpus: 0}\n").services
    assert (service.ceiling, service.quota_gpus) == (0, 0)


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        ("floor: 2, quota_gpus: 0", "is not enough for the floor of 2; expected 2 or more"),
        ("floor: 2, tensor_parallel: 4, quota_gpus: 7", "floor of 2 replicas of 4 GPUs; expected 8 or more"),
    ],
)
def test_a_quota_below_the_floor_is_refused(tmp_path, service, expected):
    ((line, key, message),) = problems(tmp_path, f"services:\n  - {{name: chat, {service}}}\n")
    assert (line, key) == (2, "services[0].quota_gpus")
    assert expected in message


def test_rule_files_are_checked_with_their_own_lines(tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules:\n  - name: ttft-p99-high\n    priority: P9\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"rules: {{files: [{rules}]}}\n")
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (str(rules), 3)


def test_a_playbook_file_is_not_a_configuration(tmp_path):
    (found,) = problems(tmp_path, "playbooks:\n  gpu-lost: {none: call us}\n")
    assert found == (1, "playbooks", "belongs in a file of its own, which remediation.playbooks names")


def test_a_rule_file_that_is_missing_has_the_line_that_names_it(tmp_path):
    (found,) = problems(tmp_path, "cluster: c\nrules:\n  files:\n  - nowhere.yaml\n")
    assert found == (4, "rules.files[0]", "nowhere.yaml does not exist")


def test_expressions_of_rule_files_are_compiled(tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        "rules:\n- {name: a, kind: service,\n   expr: 'sum(svc_queue_requests, \"5m\") > 1'}\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"rules: {{files: [{rules}]}}\n")
    (problem,) = caught.value.problems
    assert (problem.file, problem.line) == (str(rules), 3)
    assert "sum needs a counter" in problem.message


def test_rules_to_switch_on_must_exist(tmp_path):
    assert load(tmp_path, "rules: {enable: [thresholds, aborts-high]}\n").rules.enable == ["thresholds", "aborts-high"]
    ((line, key, message),) = problems(tmp_path, "rules:\n  enable: [thresholds, abort-high]\n")
    assert (line, key) == (2, "rules.enable[1]")
    assert 'did you mean "aborts-high"' in message


def test_rules_that_are_switched_on_are_in_force(tmp_path):
    names = {rule.name for rule in wiring_rules(load(tmp_path, "rules: {enable: [gpu-lost-p0]}\n"))}
    assert "gpu-lost-p0" in names
    assert "gpu-lost" not in names
