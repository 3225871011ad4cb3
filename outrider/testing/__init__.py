"""Sample fleets as public API, for our tests and those of extensions.

No product code may import it.
"""
