"""Acts on inference engines through their own HTTP endpoints. Never decides; must not import ``decide``."""
