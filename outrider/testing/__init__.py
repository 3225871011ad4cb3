"""Fakes and sample fleets as public API: for our tests and for those of extensions."""
