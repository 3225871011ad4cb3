"""Performers of a configuration, and errors of a faulty one."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outrider.errors import ActuationError, ConfigError
from outrider.model import ActionKind, EntityKind, EntityRef
from service.config import settings
from service.config.settings import Settings
from service.wiring.remediation import actuator, policy, procedures, time_limits
from tests.support.actions import claimed_action

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
NODE, REPLICA = EntityRef("c", EntityKind.NODE, None, "node-1"), EntityRef("c", EntityKind.REPLICA, "llm", "chat-0")
SERVICE = EntityRef("c", EntityKind.SERVICE, "llm", "chat")


def loaded(folder: Path, text: str) -> Settings:
    file = folder / "outrider.yaml"
    file.write_text(text, encoding="utf-8")
    return settings.load(file)


def problems(folder: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(folder, text)
    return [str(problem).removeprefix(f"{folder}/") for problem in caught.value.problems]


CONFIGURED = """\
cluster: c
remediation:
  actuators: {reboot_node: hook, reset_prefix_cache: engine, switch_cluster: gslb, reset_gpu: hook}
  engine: {url: "http://{name}.{namespace}:8000"}
  hooks:
    reboot_node: {webhook: {url: https://bmc.example/reboot}, timeout: 40m}
    reset_gpu: {nvsentinel: {}}
  gslb:
    url: https://dns.example/zones/{service}
    method: PUT
    body: {target: "{cluster}", weight: "{percent}"}
"""


def test_each_kind_has_its_performer(tmp_path: Path) -> None:
    configured = loaded(tmp_path, CONFIGURED)
    router = actuator(configured)

    def request(kind: ActionKind, target: EntityRef, **params: object) -> tuple[str, str]:
        action = claimed_action(kind, target, id_="act-1", decided_at=NOON, **params)
        (result,) = router.requests(action)
        return result.method, result.url

    assert request(ActionKind.REBOOT_NODE, NODE) == ("POST", "https://bmc.example/reboot")
    engine = request(ActionKind.RESET_PREFIX_CACHE, REPLICA, engines={"vllm": ""})
    assert engine == ("POST", "http://chat-0.llm:8000/reset_prefix_cache")
    switch = request(ActionKind.SWITCH_CLUSTER, SERVICE, cluster="west")
    assert switch == ("PUT", "https://dns.example/zones/chat")
    with pytest.raises(ActuationError, match="no Kubernetes API is configured"):
        request(ActionKind.RESET_GPU, NODE)
    assert time_limits(configured)[ActionKind.REBOOT_NODE] == timedelta(minutes=40)


@pytest.mark.parametrize(("performer", "ejecting"), [("traffic", {"chat"}), ("kubernetes", set())])
def test_a_route_that_only_ejects_outliers_is_known_to_the_guards(
    tmp_path: Path, performer: str, ejecting: set[str]
) -> None:
    text = (
        f"remediation:\n  actuators: {{shift_traffic: {performer}}}\n"
        "  traffic: {routes: {chat: {kind: destination_rule}, embed: {kind: service}}}\n"
    )
    assert policy(loaded(tmp_path, text)).ejecting == ejecting


def test_minimums_and_scale_in_limits_reach_the_guards(tmp_path: Path) -> None:
    text = (
        "remediation:\n  service_minimum: {default: 2, services: {llm/chat: 3, chat: 4}}\n"
        "  scale_in_cooldown: 1h\n  scale_in_step_ratio: 0.5\n"
    )
    given = policy(loaded(tmp_path, text))
    other = EntityRef("c", EntityKind.SERVICE, "web", "chat")
    embed = EntityRef("c", EntityKind.SERVICE, "llm", "embed")
    assert [given.minimum_of(service) for service in (SERVICE, other, embed)] == [3, 4, 2]
    assert (given.scale_in_cooldown, given.scale_in_to(8, 1)) == (timedelta(hours=1), 4)


def test_a_negative_minimum_names_line_and_key(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "remediation:\n  service_minimum:\n    services: {chat: -1}\n")
    assert problem.startswith("outrider.yaml:3: remediation.service_minimum.services.chat: ")


def test_kubernetes_is_joined_by_the_performers_of_other_kinds(tmp_path: Path) -> None:
    remediation = loaded(tmp_path, "remediation: {actuator: kubernetes, actuators: {wake_engine: dry_run}}").remediation
    performers = {kind: remediation.performer(kind) for kind in ActionKind}
    assert performers[ActionKind.CORDON] == "kubernetes"
    assert performers[ActionKind.SHIFT_TRAFFIC] == performers[ActionKind.RESTORE_TRAFFIC] == "traffic"
    assert performers[ActionKind.DRAIN_ENGINE] == "engine"
    assert performers[ActionKind.WAKE_ENGINE] == "dry_run", "an entry takes precedence"
    simulated = loaded(tmp_path, "remediation: {actuator: dry_run}").remediation
    assert {simulated.performer(kind) for kind in ActionKind} == {"dry_run"}


WEST_NODE, WEST_SERVICE = replace(NODE, cluster="west"), replace(SERVICE, cluster="west")
WEST_REPLICA = replace(REPLICA, cluster="west")
BY_KUBERNETES = """\
remediation:
  actuator: kubernetes
  kubernetes: {url: "https://127.0.0.1:9"}
  hooks:
    reboot_node: {webhook: {url: "https://bmc.example/x"}}
    reset_gpu: {nvsentinel: {}}
    run_diagnostic: {job: {image: i}}
"""


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (ActionKind.CORDON, WEST_NODE), (ActionKind.UNCORDON, WEST_NODE), (ActionKind.ROLLBACK, WEST_SERVICE),
        (ActionKind.SCALE, WEST_SERVICE), (ActionKind.SHIFT_TRAFFIC, WEST_REPLICA),
        (ActionKind.RESTORE_TRAFFIC, WEST_REPLICA), (ActionKind.BALANCE_TRAFFIC, WEST_SERVICE),
        (ActionKind.DEGRADE_SERVICE, WEST_SERVICE), (ActionKind.RESTORE_SERVICE, WEST_SERVICE),
        (ActionKind.REBOOT_NODE, WEST_NODE), (ActionKind.RESET_GPU, WEST_NODE), (ActionKind.RUN_DIAGNOSTIC, WEST_NODE),
    ],
)  # fmt: skip
def test_an_action_on_another_cluster_than_that_of_its_server_is_refused(
    tmp_path: Path, kind: ActionKind, target: EntityRef
) -> None:
    """The names of nodes and services repeat in every cluster: the object of the same name there may be healthy."""
    action = claimed_action(kind, target, id_="act-1", decided_at=NOON, level=1)
    configured = loaded(tmp_path, f"cluster: east\n{BY_KUBERNETES}")
    for attempt in (actuator(configured).perform, actuator(configured).requests):
        with pytest.raises(ActuationError, match=f"in the cluster west, but {kind.value} reaches only east") as caught:
            attempt(action)
        assert not caught.value.retryable
    named = loaded(tmp_path, f"cluster: east\n{BY_KUBERNETES}".replace(":9", ':9", cluster: "west'))
    assert (policy(configured).clusters[kind], policy(named).clusters[kind]) == ("east", "west")


def test_a_server_may_belong_to_another_cluster_than_the_configured_one(tmp_path: Path) -> None:
    text = f"cluster: east\n{BY_KUBERNETES}".replace(":9", ':9", cluster: "west')
    router = actuator(loaded(tmp_path, text))
    with pytest.raises(ActuationError, match="cannot be reached"):
        router.requests(claimed_action(ActionKind.CORDON, WEST_NODE, id_="act-1", decided_at=NOON))
    with pytest.raises(ActuationError, match="in the cluster c, but cordon reaches only west"):
        router.requests(claimed_action(ActionKind.CORDON, NODE, id_="act-1", decided_at=NOON))


def test_performers_that_name_the_cluster_themselves_reach_every_cluster(tmp_path: Path) -> None:
    text = """\
cluster: east
remediation:
  actuator: kubernetes
  hooks: {run_diagnostic: {webhook: {url: "https://h/x"}}, reboot_node: {webhook: {url: "https://h/x"}}}
  gslb: {url: "https://dns.example/{service}"}
  degrade: {config_map: false, webhook: "https://gateway/x"}
  engine: {url: "http://{name}.{namespace}.{cluster}:8000"}
"""
    kinds = set(policy(loaded(tmp_path, text)).clusters)
    free = {
        *(ActionKind.RUN_DIAGNOSTIC, ActionKind.REBOOT_NODE, ActionKind.SWITCH_CLUSTER),
        *(ActionKind.DEGRADE_SERVICE, ActionKind.RESTORE_SERVICE, ActionKind.WAKE_ENGINE, ActionKind.DRAIN_ENGINE),
    }
    assert not kinds & free
    assert {ActionKind.CORDON, ActionKind.SHIFT_TRAFFIC, ActionKind.SCALE} <= kinds
    pausing = text.replace("gateway/x", 'gateway/x", services: {chat: {pause: [batch]}}, enabled: "true')
    assert policy(loaded(tmp_path, pausing)).clusters[ActionKind.DEGRADE_SERVICE] == "east"
    assert policy(loaded(tmp_path, "remediation: {actuator: simulated, control_url: 'http://x'}")).clusters == {}
    assert policy(loaded(tmp_path, "remediation: {actuator: dry_run}")).clusters == {}


def test_an_engine_behind_a_name_of_one_cluster_is_left_alone_in_others(tmp_path: Path) -> None:
    configured = loaded(tmp_path, CONFIGURED)
    action = claimed_action(
        ActionKind.RESET_PREFIX_CACHE, WEST_REPLICA, id_="act-1", decided_at=NOON, engines={"vllm": "http://10.2.0.1"}
    )
    with pytest.raises(ActuationError, match="in the cluster west"):
        actuator(configured).requests(action)
    by_address = loaded(tmp_path, CONFIGURED.replace("{name}.{namespace}", "{host}"))
    (request,) = actuator(by_address).requests(action)
    assert request.url == "http://10.2.0.1:8000/reset_prefix_cache"


def test_autoscalers_belong_to_the_cluster_of_their_own_server(tmp_path: Path) -> None:
    text = """\
cluster: east
remediation: {actuators: {scale: autoscalers}, kubernetes: {cluster: north}}
planner: {scaling: {kubernetes: {cluster: west}, emit: [{service: chat, type: hpa}]}}
"""
    assert policy(loaded(tmp_path, text)).clusters == {ActionKind.SCALE: "west"}
    webhook = text.replace("type: hpa", 'type: webhook, url: "https://h/x"')
    assert policy(loaded(tmp_path, webhook)).clusters == {}, "the request names the cluster"


def test_hooks_and_gslb_perform_their_kinds_without_an_entry(tmp_path: Path) -> None:
    text = f"{BY_KUBERNETES}  gslb: {{url: 'https://dns.example/x'}}\n"
    configured = loaded(tmp_path, text)
    performers = {kind: configured.remediation.performer(kind) for kind in ActionKind}
    assert {performers[kind] for kind in configured.remediation.hooks} == {"hook"}
    assert performers[ActionKind.SWITCH_CLUSTER] == "gslb"
    assert policy(configured).diagnostic, "a node with a hardware fault needs its diagnostic"
    assert not policy(loaded(tmp_path, "remediation: {actuator: kubernetes}")).diagnostic
    assert ActionKind.REBOOT_NODE in time_limits(configured)


def test_kinds_that_nothing_can_perform_are_known_to_the_guards(tmp_path: Path) -> None:
    def unperformed(text: str) -> set[ActionKind]:
        return set(policy(loaded(tmp_path, f"remediation: {{{text}}}")).unperformed)

    hooked = {ActionKind.RESET_GPU, ActionKind.REBOOT_NODE, ActionKind.RUN_DIAGNOSTIC}
    assert unperformed("actuator: kubernetes") == {*hooked, ActionKind.SWITCH_CLUSTER}
    with_gslb = "actuator: kubernetes, hooks: {reset_gpu: {nvsentinel: {}}}, gslb: {url: 'https://d'}"
    assert unperformed(with_gslb) == hooked - {ActionKind.RESET_GPU}
    assert unperformed("actuator: dry_run") == unperformed("actuator: simulated, control_url: 'http://x'") == set()
    assert unperformed("actuators: {shift_traffic: kubernetes}") == {ActionKind.SHIFT_TRAFFIC}


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        (
            "hooks: {reset_gpu: {nvsentinel: {}}}", "remediation.hooks.reset_gpu",
            "is not used: dry_run performs reset_gpu; set remediation.actuators.reset_gpu to hook",
        ),
        ("gslb: {url: 'https://d/x'}", "remediation.gslb", "is not used: dry_run performs switch_cluster"),
        (
            "actuator: kubernetes, hooks: {reset_gpu: {nvsentinel: {}}}, actuators: {reset_gpu: dry_run}",
            "remediation.hooks.reset_gpu", "is not used: dry_run performs reset_gpu",
        ),
        (
            "actuator: kubernetes, hooks: {reboot_node: {job: {image: i}}}", "remediation.hooks.reboot_node.job",
            "no Job can run on an unreachable node",
        ),
    ],
)  # fmt: skip
def test_a_section_without_effect_is_a_warning(tmp_path: Path, text: str, key: str, message: str) -> None:
    file = tmp_path / "outrider.yaml"
    file.write_text(f"remediation: {{{text}}}\n", encoding="utf-8")
    _, errors, warnings = settings.review(file)
    assert errors == []
    (warning,) = warnings
    assert (warning.line, warning.key, message in warning.message) == (1, key, True)


def test_a_hook_that_no_action_uses_has_no_time_limit(tmp_path: Path) -> None:
    text = "remediation:\n  hooks: {reboot_node: {webhook: {url: https://bmc.example/x}}}\n"
    assert ActionKind.REBOOT_NODE not in time_limits(loaded(tmp_path, text))


def test_a_drain_may_last_as_long_as_its_playbook_says(tmp_path: Path) -> None:
    assert time_limits(loaded(tmp_path, ""))[ActionKind.DRAIN] == timedelta(minutes=20)
    step = "{action: drain, target: node, verify: drained, timeout: 45m}"
    (tmp_path / "own.yaml").write_text(f"playbooks:\n  node-lost:\n    steps:\n      - {step}\n")
    configured = loaded(tmp_path, f"remediation: {{playbooks: [{tmp_path / 'own.yaml'}]}}")
    assert time_limits(configured)[ActionKind.DRAIN] == timedelta(minutes=45)
    assert policy(configured).time_limit(ActionKind.DRAIN) == timedelta(minutes=45)
    assert policy(configured).time_limit(ActionKind.CORDON) == timedelta(minutes=10)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "actuators: {cordon: hook}",
            "outrider.yaml:2: remediation.actuators.cordon: hook does not perform cordon; it ",
        ),
        ("actuators: {reset_gpu: hook}", "actuators.reset_gpu: hook requires remediation.hooks.reset_gpu"),
        ("actuators: {switch_cluster: gslb}", "actuators.switch_cluster: gslb requires remediation.gslb"),
        ("actuators: {wake_engine: motor}", "remediation.actuators.wake_engine"),
        ("hooks: {cordon: {webhook: {url: https://x}}}", "remediation.hooks.cordon"),
        ("hooks: {reset_gpu: {}}", "hooks.reset_gpu: expected exactly one of job, webhook and nvsentinel, not 0"),
        ("hooks: {reset_gpu: {job: {image: i}, nvsentinel: {}}}", "exactly one of job, webhook and nvsentinel, not 2"),
        ("hooks: {reset_gpu: {job: {}}}", "hooks.reset_gpu.job.image: is required without a template"),
        ("hooks: {reset_gpu: {job: {template: nowhere.yaml}}}", "hooks.reset_gpu.job.template"),
        ("hooks: {reset_gpu: {webhook: {url: bmc}}}", "hooks.reset_gpu.webhook.url: expected an http or https URL"),
        ("hooks: {run_diagnostic: {nvsentinel: {}}}", "NVSentinel runs no diagnostics; expected job or webhook"),
        ("hooks: {run_diagnostic: {job: {image: i, level: 3}}}", "hooks.run_diagnostic.job.level"),
        (
            'engine: {url: "http://{pod}"}',
            "remediation.engine.url: unknown placeholder {pod}; valid: cluster, host, name",
        ),
        ("gslb: {url: dns}", "remediation.gslb.url: expected an http or https URL"),
        ('gslb: {url: "https://d", body: {a: "{clustr}"}}', "gslb.body: unknown placeholder {clustr}; valid: id"),
        ('gslb: {url: "https://d", body: {a: "{"}}', "write {{ and }} for braces"),
        (
            "gslb: {url: 'https://d', read: {url: 'https://d', share: a}, dns: {name: n, addresses: {w: [a]}}}",
            "expected read or dns, not both",
        ),
        ("gslb: {url: 'https://d', read: {url: 'https://d', share: '{x}'}}", "gslb.read.share: unknown placeholder"),
    ],
)
def test_a_faulty_configuration_names_line_and_key(tmp_path: Path, text: str, expected: str) -> None:
    reported = problems(tmp_path, f"remediation:\n  {text}\n")
    assert any(expected in problem for problem in reported), reported
    assert all(problem.startswith("outrider.yaml:2: ") for problem in reported)


def test_a_template_is_checked_in_its_own_file(tmp_path: Path) -> None:
    template = tmp_path / "job.yaml"
    text = f"remediation:\n  hooks: {{reset_gpu: {{job: {{template: {template}}}}}}}\n"
    template.write_text("apiVersion: v1\nkind: Pod\n")
    assert problems(tmp_path, text) == ["job.yaml:2: kind: expected a Job of batch/v1"]
    template.write_text("apiVersion: batch/v1\nkind: Job\nspec:\n  template: {spec: {containers: []}}\n")
    assert problems(tmp_path, text)[0].startswith("job.yaml:3: spec: expected spec.template.spec.containers")
    template.write_text(
        "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n        - name: c\n"
    )
    assert "job.yaml:7: spec.template.spec.containers[0].image: is required" in problems(tmp_path, text)[0]
    assert loaded(tmp_path, text.replace("{template", "{image: i, template")).remediation.hooks
    template.write_text("kind: [")
    assert problems(tmp_path, text)[0].startswith("job.yaml:1:")


WAITS = """\
services: [{name: chat, startup: 3m}, {name: plain}, {name: own}]
slos:
  - {name: chat-fast, service: chat, sli: ttft, limit: 1s, objective: 0.9}
  - {name: chat-most, service: chat, sli: ttft, limit: 5s, objective: 0.99}
  - {name: chat-answers, service: chat}
  - {name: code, service: code, sli: ttft, limit: 5s}
  - {name: own, service: own, sli: ttft, limit: 5s}
  - {name: steady, service: steady, sli: tpot, limit: 100ms}
remediation:
  degrade: {services: {own: {wait_objective: 500ms}}}
"""


@pytest.mark.parametrize(
    ("service", "seconds"), [("chat", 1.0), ("code", 5.0), ("own", 0.5), ("plain", 2.0), ("steady", 2.0)]
)
def test_the_ladder_measures_the_queue_against_the_ttft_slo(tmp_path: Path, service: str, seconds: float) -> None:
    ladder = procedures(loaded(tmp_path, WAITS)).ladders.of(service)
    assert ladder is not None
    assert ladder.wait_objective == timedelta(seconds=seconds)


def test_an_slo_of_every_service_gives_the_objective_of_unnamed_ones(tmp_path: Path) -> None:
    common = "slos: [{name: all, sli: ttft, limit: 1s}, {name: chat, service: chat, sli: ttft, limit: 5s}]"
    ladders = procedures(loaded(tmp_path, f"services: [{{name: plain}}]\n{common}\n")).ladders
    objectives = {name: ladder.wait_objective.total_seconds() for name in ("chat", "plain", "new")
                  if (ladder := ladders.of(name))}  # fmt: skip
    assert objectives == {"chat": 5.0, "plain": 1.0, "new": 1.0}
