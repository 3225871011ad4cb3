"""Cost of a fleet: GPU mix, offers, reservations, the front of cost and latency."""
