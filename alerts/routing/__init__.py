"""From alerts to messages: routes, grouping, wording, the notification pipeline.

Pure: sends nothing and does not import ``alerts.notify``.
"""
