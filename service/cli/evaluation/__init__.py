"""Commands that score detection, forecasts, root cause and drills.

Must not import commands of another folder.
"""
