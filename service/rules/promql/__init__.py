"""PromQL of alert rules: parsed and translated into rule expressions, and written from them. Pure."""
