"""Private: what is typed: a file per command with its arguments, options and checks.

Nothing here imports more than the standard library, Typer and `evenkeel._options`, lest --help and errors wait for
torch: a command imports its work, the file of its name in `cli/`, when all that was typed is right.
"""
