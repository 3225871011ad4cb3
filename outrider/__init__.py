"""The kernel: types, protocols and vocabulary shared by every stage.

Must not import another top-level package, use a network or know a database.
"""
