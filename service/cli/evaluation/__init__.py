"""Commands that score detection, forecasts, root cause and drills."""
