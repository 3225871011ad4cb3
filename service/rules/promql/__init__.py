"""PromQL of alert rules: translated into rule expressions, and written from them. Pure."""
