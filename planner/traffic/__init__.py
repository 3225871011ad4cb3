"""Load-balancer weights: balance, steering, prompt-length routes."""
