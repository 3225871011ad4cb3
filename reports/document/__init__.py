"""Structure of a report and its renderers: HTML, Markdown, JSON, charts. Must not import ``inputs``."""
