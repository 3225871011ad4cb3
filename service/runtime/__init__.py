"""The processes of the platform: engine process, leader lease, supervisor, scheduled jobs.

Must not import ``service.api``, ``service.ops`` or ``service.cli``.
"""
