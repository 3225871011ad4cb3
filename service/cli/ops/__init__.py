"""Commands that run and operate the platform."""
