"""On-call schedules, people and teams: who is on call at a time, and which team owns an incident.

Pure: reads no file, no store and no clock. Must not import ``alerts.routing`` or ``alerts.notify``.
"""
