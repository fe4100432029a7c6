"""Private: the runner of studies and experiments: directory, frozen settings, records, machine."""

from evenkeel.lab.runner._directory import clear_errors, run_directory, threads
from evenkeel.lab.runner._frozen import FORMAT, FrozenFile, stamp
from evenkeel.lab.runner._machine import cores, platform_name, processor, processors
from evenkeel.lab.runner._records import Records, json_text, read_records, write_json
from evenkeel.lab.runner._workers import Job, Tell, run_jobs, serve

__all__ = [
    "FORMAT",
    "FrozenFile",
    "Job",
    "Records",
    "Tell",
    "clear_errors",
    "cores",
    "json_text",
    "platform_name",
    "processor",
    "processors",
    "read_records",
    "run_directory",
    "run_jobs",
    "serve",
    "stamp",
    "threads",
    "write_json",
]
