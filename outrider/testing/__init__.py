"""Sample fleets as public API, for our tests and those of extensions."""
