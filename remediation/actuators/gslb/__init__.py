"""Switches traffic between clusters through a DNS or GSLB provider. Never decides; must not import ``decide``."""
