from datetime import timedelta

import pytest

from outrider.errors import ConfigError
from service import settings


def load(tmp_path, text):
    path = tmp_path / "outrider.yaml"
    path.write_text(text, encoding="utf-8")
    return settings.load(path)


def problems(tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return [(problem.line, problem.key, problem.message) for problem in caught.value.problems]


def test_no_key_is_required(tmp_path):
    assert load(tmp_path, "") == settings.Settings()
    assert settings.load(None).store.url == "sqlite:///.outrider/outrider.db"
    assert settings.load(None).remediation.dry_run is True


def test_durations_are_read(tmp_path):
    assert load(tmp_path, "collect: {interval: 5s}").collect.interval == timedelta(seconds=5)


def test_every_fault_is_told_in_line_order(tmp_path):
    found = problems(tmp_path, "stor: {url: a}\ncollect:\n  intervall: 5s\n  interval: 5 parsecs\n")
    assert found == [
        (1, "stor", 'unknown key; did you mean "store"?'),
        (3, "collect.intervall", 'unknown key; did you mean "interval"?'),
        (4, "collect.interval", "expected a duration such as 15s, 5m, 1h30m or 7d, not '5 parsecs'"),
    ]


def test_two_targets_may_not_share_a_name(tmp_path):
    target = "{name: a, adapter: vllm, url: 'http://x', entity: {kind: replica, name: a}}"
    found = problems(tmp_path, f"collect:\n  targets:\n    - {target}\n    - {target}\n")
    assert found == [(4, "collect.targets[1].name", "a second target is named 'a'")]


def test_a_route_to_nobody_is_refused(tmp_path):
    assert problems(tmp_path, "notify:\n  groups: {im: [nobody]}\n")[0][:2] == (2, "notify.groups.im[0]")


def test_environment_is_filled_in_and_missed(tmp_path, monkeypatch):
    monkeypatch.setenv("CLUSTER", "blue")
    assert load(tmp_path, "cluster: ${CLUSTER}-1\n").cluster == "blue-1"
    monkeypatch.delenv("CLUSTER")
    assert problems(tmp_path, "cluster: ${CLUSTER}\n") == [(1, "cluster", "the environment has no variable CLUSTER")]


def test_not_a_mapping(tmp_path):
    assert "expected a mapping" in problems(tmp_path, "- a\n")[0][2]


def test_every_setting_is_documented():
    sections = [*settings.Section.__subclasses__(), settings.ChannelSettings]
    undocumented = [
        f"{section.__name__}.{name}"
        for section in sections
        for name, field in section.model_fields.items()
        if not field.description
    ]
    assert undocumented == []


def test_a_game_day_names_a_cluster_that_is_there_and_a_window_that_fits(tmp_path):
    days = "game_days:\n  - {name: a, faults: [gpu-lost], cluster: mian, window: 8d}\n"
    remediation = "cluster: main\nremediation: {actuator: simulated, control_url: 'http://x'}\n"
    assert problems(tmp_path, remediation + days) == [
        (4, "game_days[0].cluster", "no cluster is named 'mian'; did you mean \"main\"?"),
        (4, "game_days[0].window", "does not fit; expected more than 2m and less than 7d"),
    ]
    assert problems(tmp_path, days.replace("mian", "main").replace("8d", "1h"))[0][2].startswith(
        "needs a simulated fleet"
    )


def test_game_days_alone_are_enough_for_a_fleet_brought_along(tmp_path):
    path = tmp_path / "days.yaml"
    path.write_text("game_days:\n  - {name: a, faults: [gpu-lost], cluster: demo}\n", encoding="utf-8")
    assert [day.name for day in settings.load(path, fleet="demo").game_days] == ["a"]
    with pytest.raises(ConfigError, match="no cluster is named 'demo'"):
        settings.load(path, fleet="other")


def test_rules_for_what_is_pushed_are_checked_to_the_line(tmp_path):
    file = tmp_path / "outrider.yaml"
    file.write_text(
        "receive:\n  rules:\n    - match: {job: '['}\n      adapter: vlm\n  silent_after: 2h\n", encoding="utf-8"
    )
    with pytest.raises(ConfigError) as caught:
        settings.load(file)
    told = [str(problem) for problem in caught.value.problems]
    assert any(":3: " in one and "is no regular expression" in one for one in told)
    assert any(":4: " in one and "there is no adapter 'vlm'" in one and "vllm" in one for one in told)
    assert any("must be longer than silent_after" in one for one in told)
