"""The fault catalog joined with the live topology: build, query, draw. Nothing imports it but ``service``."""
