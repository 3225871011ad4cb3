"""GPU reset, node reboot and diagnostics through a Job, a webhook or NVSentinel. Never decides.

Must not import ``decide``.
"""
