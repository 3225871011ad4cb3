"""Commands below ``outrider capacity``.

Must not import commands of another folder.
"""
