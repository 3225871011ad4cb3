"""Adapters as data: one YAML file an engine or exporter. No code lives here."""
