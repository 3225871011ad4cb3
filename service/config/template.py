"""The commented configuration template of ``outrider config init``."""

from __future__ import annotations

_HEAD = """\
# Outrider configuration. No key is required; commented-out keys show the default or an example.
# ${NAME} is expanded from the environment. A key that ends in _file is the path of a file with the secret.
# Check it with: outrider config check outrider.yaml

cluster: default

store:
  url: sqlite:///.outrider/outrider.db
  # Stores metrics in VictoriaMetrics, Mimir, Thanos or Prometheus instead (docs/explanation/scaling-out.md).
  # metrics: {url_write: "http://victoria:8428/api/v1/write", url_read: "http://victoria:8428"}
"""

_SCRAPE = """
collect:
  interval: 15s
  # Custom adapter files, for engines and exporters without a built-in adapter.
  # adapters: [my_engine.yaml]
  # One entry per metrics page. The labels define the topology: node, pod, service, gpu_type, model, workload.
  targets: []
  #  - name: chat-0
  #    adapter: vllm            # docs/reference/adapters.md lists them all
  #    url: http://10.0.0.11:8000/metrics
  #    entity: {kind: replica, namespace: serving, name: chat-0}
  #    labels: {node: node-1, pod: chat-0, service: chat, gpu_type: H100, model: llama-70b}
  #  - name: dcgm-node-1
  #    adapter: dcgm
  #    url: http://10.0.0.11:9400/metrics
  #    entity: {kind: node, name: node-1}
  #    labels: {node: node-1}
  # Service discovery: kubernetes, file (file_sd), http (http_sd), dns, static.
  discover: []
  #  - type: kubernetes          # pods and services with prometheus.io/scrape: "true"
  #    url: https://kubernetes.default.svc
  #    bearer_token_file: /var/run/secrets/kubernetes.io/serviceaccount/token
  #    tls: {ca_file: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt}
  #  - {type: file, files: [/etc/outrider/targets/*.yaml], adapters: {vllm: vllm, dcgm-exporter: dcgm}}
"""

_PROMETHEUS = """
collect:
  interval: 15s
  # Reads from an existing Prometheus, Thanos, Mimir or VictoriaMetrics instead of scraping.
  prometheus:
    url: %s
    # Adapter per job; for other jobs it is detected from their metric names.
    jobs: {}
    #  vllm: vllm
    #  dcgm-exporter: dcgm
    #  node: node_exporter
    #  kube-state-metrics: kube_state_metrics
    # bearer_token_file: /run/secrets/prometheus-token
"""

_TAIL = """
# SLOs with error budgets. An alert fires if a budget burns too fast (outrider slo list shows burn rates).
slos: []
#  - {name: answers, sli: success, objective: 0.999}
#  - {name: first-token, service: chat, sli: ttft, limit: 1s, objective: 0.99}

# Your own alert rules, and packaged ones that are off (outrider rules list).
# rules:
#   files: [my-rules.yaml]
#   enable: [thresholds]         # for example a lost GPU is P0, whole-request P99 above 2 s

# Event sources: XIDs, OOM kills, rollouts, changed flags, engine logs.
events: []
#  - {type: kernel_log, path: /dev/kmsg, node: node-1}     # or url: http://agent.{node}:9800/klog of outrider agent
#  - type: kubernetes           # events, changes, topology, start-ups; kubectl apply -f deploy/rbac.yaml
#    url: https://kubernetes.default.svc
#    bearer_token_file: /var/run/secrets/kubernetes.io/serviceaccount/token
#    tls: {ca_file: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt}
#  - type: engine_log           # logs of pods that request an accelerator
#    url: https://kubernetes.default.svc
#    bearer_token_file: /var/run/secrets/kubernetes.io/serviceaccount/token
#    tls: {ca_file: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt}
#  - {type: loki, url: http://loki:3100, query: '{namespace="serving"}'}   # the same logs from Loki

# Changes sent by GitHub and GitLab to POST /api/v1/changes.
# changes:
#   github_secret_file: /run/secrets/github-webhook
#   services: {acme/chat-gitops: chat}

# Blackbox probes of services: every 30s, at most max_tokens tokens per probe.
probes: []
#  - {type: generation, service: chat, namespace: serving, url: https://chat.example/v1, model: llama-70b}
#  - {type: tls, service: chat, namespace: serving, host: chat.example, cert_days: 14, every: 1h}

# Pushed data: Prometheus remote write, OTLP metrics, business KPIs (docs: howto/receive-metrics).
# receive:
#   token_file: /run/secrets/outrider-push-token   # valid for these endpoints only
#   rules:
#     - match: {job: "chat-.*"}
#       adapter: vllm
#       labels: {service: chat}

# Facts about model services that metrics do not provide, for the GPU formula and for cost.
services: []
#  - name: chat
#    namespace: serving
#    gpu_type: H100
#    tensor_parallel: 4
#    floor: 2
#    ceiling: 16
#    startup: 5m                # trigger to first served request, P95; a prior until measured
#    price_per_gpu_hour: 2.5
#    # tokens_per_request, batch and tokens_per_second_per_sequence are measured if not set

notify:
  language: en                  # en | zh
  channels: {}
  #  oncall: {type: dingtalk, url_file: /run/secrets/dingtalk-url, secret_file: /run/secrets/dingtalk-secret}
  #  team: {type: slack, url_file: /run/secrets/slack-url}
  #  phone: {type: twilio_voice, account_sid: AC0, auth_token_file: /run/secrets/twilio, from: "+15005550006",
  #          to: ["+8613800000001"]}
  #  mail: {type: email, host: mail.example, from: outrider@example.org, to: [oncall@example.org]}
  groups: {}
  #  phone: [phone]                # calls for a P0 only
  #  im: [oncall, team]
  #  mail: [mail]
  #  report: [mail]
  # fallback: mail                 # receives what another channel cannot deliver

# Who is paged, and who is next if nobody acknowledges (docs/howto/be-on-call.md).
# oncall:
#   people: [{name: li, phone: "+8613800000000"}, {name: wang}]
#   teams: [{name: model, members: [li, wang], lead: wang, schedule: model}]
#   schedules:
#     - name: model
#       timezone: Asia/Shanghai
#       rotations: [{people: [li, wang], start: 2026-11-23, handover: "09:00"}]

remediation:
  autonomy: approve             # observe | recommend | approve | act
  # autonomy_for: {playbooks: {engine-hung: act}, environments: {prod: approve}}
  # environments: {prod: {namespaces: ["prod-*"]}}
  dry_run: true                 # reports planned actions, changes nothing
  # max_cordoned_nodes: 2
  # max_cordoned_ratio: 0.2
  # service_minimum: {default: 1, services: {chat: 2}}   # serving replicas that no action goes below
  # ask_for: [drain]            # kinds that always need manual approval
  # two_person: [drain]         # kinds that two people must approve
  # freezes: [{name: new-year, timezone: Europe/Berlin, start: "2026-12-31 12:00", end: "2027-01-02 06:00"}]
  # kill_switch_file: /etc/outrider/stop   # while it exists, nothing is sent to a cluster
  # actuators: {cordon: kubernetes, wake_engine: engine, run_diagnostic: hook}
  # hooks: {run_diagnostic: {job: {image: registry.example/dcgm:4}}}

# A model behind an OpenAI-compatible endpoint that summarizes incidents; nothing depends on it.
# explainer: {url: "http://10.0.0.5:8000/v1", model: llama-8b, key_file: /run/secrets/explainer-key}

# api: {host: 127.0.0.1, port: 8600, public_url: "https://outrider.example/api"}   # public_url: for buttons in messages
# dashboard: {host: 127.0.0.1, port: 8501}
"""


def text(prometheus_url: str | None = None) -> str:
    """Returns the whole file. With ``prometheus_url`` it reads that server instead of scraping."""
    return _HEAD + (_PROMETHEUS % prometheus_url if prometheus_url else _SCRAPE) + _TAIL
