"""Publishes degrade levels where gateways and clients read them. Never decides; must not import ``decide``."""
