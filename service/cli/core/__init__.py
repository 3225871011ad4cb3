"""Options, output formats, tables, progress bars and exit codes shared by all commands.

Must not import a command.
"""
