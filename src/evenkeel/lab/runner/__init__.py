"""Private: the runner of studies and experiments: directory, frozen settings, records, machine."""

from evenkeel.lab.runner._choice import executor_of
from evenkeel.lab.runner._directory import clear_errors, run_directory, threads
from evenkeel.lab.runner._executors import Executor, Job, Task, Tell, Work
from evenkeel.lab.runner._frozen import FORMAT, FrozenFile, stamp
from evenkeel.lab.runner._machine import cores, peak_memory, platform_name, processor, processors
from evenkeel.lab.runner._processes import serve
from evenkeel.lab.runner._records import Records, json_text, read_records, write_json

__all__ = [
    "FORMAT",
    "Executor",
    "FrozenFile",
    "Job",
    "Records",
    "Task",
    "Tell",
    "Work",
    "clear_errors",
    "cores",
    "executor_of",
    "json_text",
    "peak_memory",
    "platform_name",
    "processor",
    "processors",
    "read_records",
    "run_directory",
    "serve",
    "stamp",
    "threads",
    "write_json",
]
