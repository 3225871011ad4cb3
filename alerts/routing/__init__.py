"""From alerts to messages: routes, grouping, wording, the notification pipeline. Sends nothing."""
