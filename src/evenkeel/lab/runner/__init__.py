"""Private: the runner of studies and experiments: directory, frozen settings, records, machine."""

from evenkeel.lab.runner._directory import run_directory, threads
from evenkeel.lab.runner._frozen import FORMAT, FrozenFile, stamp
from evenkeel.lab.runner._machine import platform_name, processor, processors
from evenkeel.lab.runner._records import Records, json_text, read_records, write_json

__all__ = [
    "FORMAT",
    "FrozenFile",
    "Records",
    "json_text",
    "platform_name",
    "processor",
    "processors",
    "read_records",
    "run_directory",
    "stamp",
    "threads",
    "write_json",
]
