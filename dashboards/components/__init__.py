"""Charts, palette, formats and HTML pieces shared by the dashboard pages."""
