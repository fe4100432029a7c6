"""Private: what a user chooses by name or number, with its defaults and checks.

The packages that do the work read these tables, and so does the command line, which has to list them and refuse a wrong
choice before it imports torch. So nothing here imports more than the standard library.
"""
