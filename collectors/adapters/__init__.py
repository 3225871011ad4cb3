"""Adapters as data: one YAML file per engine or exporter. Must not contain code."""
