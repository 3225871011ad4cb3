"""Charts, palette, formats and HTML pieces shared by the dashboard pages. Must not import ``views`` or ``session``."""
