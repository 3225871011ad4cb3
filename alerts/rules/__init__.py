"""Alert rules: parsing, editing, SLO rules, matching findings to rules.

Only ``files`` reads files. Imports no other package of ``alerts``.
"""
