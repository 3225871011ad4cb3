"""The engine model against recordings of a real engine: read one, replay its arrivals, fit, state the error."""
