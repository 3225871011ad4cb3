"""Weekly reports as HTML, Markdown and JSON, in English and Chinese.

Must not write to a store or a file, or import a package other than ``outrider``: ``service`` saves the text.
"""
