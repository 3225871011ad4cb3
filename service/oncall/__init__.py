"""On-call rosters of a running platform, imported calendars, and signed buttons.

Must not import ``service.engine`` or ``service.api``.
"""
