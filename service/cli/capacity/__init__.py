"""Commands below ``outrider capacity``."""
