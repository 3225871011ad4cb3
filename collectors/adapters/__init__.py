"""Adapters as data: one YAML file per engine or exporter. No code."""
