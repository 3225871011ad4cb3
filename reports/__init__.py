"""Weekly reports as HTML, Markdown and JSON, in English and Chinese.

A report is a frozen ``ReportModel``, built from the read ports and rendered by one template per format. Nothing here
writes to a store or a file: ``service`` calls it and saves the text. Knows only the kernel.
"""
