"""The shape of a report and its renderers: HTML, Markdown, JSON, charts."""
