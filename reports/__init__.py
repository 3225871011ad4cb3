"""Reports that people read: the weekly SLA report as HTML, Markdown and JSON, in English and Chinese.

A report is a frozen ``ReportModel``, built from the read ports it is handed, and rendered by one
template a format. Nothing here writes to a store or a file; ``service`` calls it and saves the text.
"""
