"""The configuration: one YAML file, validated with line numbers, passed on as values.

Must not import another package of ``service``.
"""
