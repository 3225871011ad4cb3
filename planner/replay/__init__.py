"""Scaling replay: runs scaling policies side by side on a traffic trace, with their cost and their waiting requests.

Replays use the plan's own forecaster and decision. Nothing else in the planner imports this package.
"""
