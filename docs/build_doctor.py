"""Write the tables of docs/doctor.md: the rules, and what they find in programs with a fault and in sound ones.

Run in the repository's root: `PYTHONPATH=src:tests python docs/build_doctor.py`; it takes five minutes. The paragraphs
between the tables are written by hand.
"""

import json
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from evenkeel._files import write_text_atomically
from evenkeel.doctor import RULES
from evenkeel.report import Table

PAGE = Path(__file__).with_name("doctor.md")
UNSEEN = (1300, 2100)  # seeds of the judging half
OF_LAYERS: tuple[str, ...] = ("redundant-bias", "overflow-near", "not-finite", "input-not-normalized", "unequal-scales")
OF_LAYERS += ("constant-input-feature", "massive-activations", "normalized-twice", "unnormalized-depth")
PORT_SEEDS = (0, 1300, 2100)
MEASURED = Path(__file__).with_name("measurements") / "doctor.json"


def run() -> dict[str, Any]:
    """Run every program; return which rules fired, by half of the programs: even ones set thresholds, odd ones judge.

    Those that judge run with seeds, so weights and data, that no threshold was set on.
    """
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from doctor.faults.families import SHIFT  # type: ignore[import-not-found]
    from doctor.faults.faulty import FAULTY  # type: ignore[import-not-found]
    from doctor.faults.healthy import healthy  # type: ignore[import-not-found]
    from doctor.faults.ports import PORTS, judged  # type: ignore[import-not-found]

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    faults: dict[str, list[list[bool]]] = {rule: [[], []] for rule in FAULTY}
    sound: list[dict[str, list[str]]] = [{}, {}]
    for half, seed in ((0, 0), *((1, seed) for seed in UNSEEN)):
        SHIFT[0] = seed
        for rule, programs in FAULTY.items():
            for make in list(programs.values())[half::2]:
                faults[rule][half].append(any(f.rule == rule for f in make().findings))
        for name, make in list(healthy().items())[half::2]:
            sound[half][f"{name}, seed {seed}"] = sorted({f.rule for f in make().findings})
    ports = [
        {"subject": p.subject, "fault": p.fault, "known": p.known, "umlaut": p.umlaut}
        | {"runs": [judged(p, seed) for seed in PORT_SEEDS]}
        for p in PORTS
    ]
    return {"faults": faults, "sound": sound, "ports": ports}


def trust_table(measured: dict[str, Any]) -> Table:
    """A row for each rule: what it finds among the programs that set no threshold, and what it says of sound ones."""
    rows: list[list[Any]] = []
    _, held = measured["sound"]
    for rule in RULES:
        setting, judging = measured["faults"][rule.id]
        alarms = sum(rule.id in fired for fired in held.values())
        shares = [f"{sum(half)} of {len(half)}" for half in (setting, judging)]
        rows.append([f"`{rule.id}`", rule.severity, f"{rule.threshold:g}", *shares, f"{alarms} of {len(held)}"])
    columns = ["rule", "severity", "threshold", "found, setting half", "found, judging half", "sound programs, judging"]
    return Table(columns, rows)


def ports_table(measured: dict[str, Any]) -> Table:
    """A row for each port: what is said of it here and by others, and of what it became after the fix."""
    rows: list[list[Any]] = []
    for port in measured["ports"]:
        runs = port["runs"]
        named, alarms = sum(run["named"] for run in runs), sum(bool(run["alarms"]) for run in runs)
        rows.append(
            [
                f"[{port['subject']}](https://stackoverflow.com/q/{port['subject']})",
                port["fault"],
                port["known"],
                f"{named} of {len(runs)}",
                f"{alarms} of {len(runs)}",
                "yes" if port["umlaut"] else "no",
                "yes" if runs[0]["beyond"][1] else "no",
            ]
        )
    columns = ["subject", "fault", "known from", "named here", "alarms after the fix", "UMLAUT named it, published"]
    return Table([*columns, "UMLAUT's bound on the fixed port"], rows)


def ports_summary(measured: dict[str, Any]) -> str:
    """What the table of ports adds up to."""
    ports = measured["ports"]
    named = sum(all(run["named"] for run in port["runs"]) for port in ports)
    alarms = sum(any(run["alarms"] for run in port["runs"]) for port in ports)
    published, bound = sum(port["umlaut"] for port in ports), sum(port["runs"][0]["beyond"][1] for port in ports)
    return (
        f"Of {len(ports)} ports the doctor names {named}, and warns of {alarms} of the fixed ones. UMLAUT named "
        f"{published} of the originals; its bound, inputs beyond -1 and 1, would speak of {bound} of the fixed ports."
    )


def filled(text: str, name: str, content: str) -> str:
    """The page with other content between the marks of a name."""
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda found: f"{found[1]}{content}\n{found[2]}", text, flags=re.DOTALL)


def rules_text() -> str:
    """A heading for each group, and for each rule what it reads, when it applies, its source and its remedy."""
    parts = []
    for group in dict.fromkeys(rule.group for rule in RULES):
        parts.append(f"### {group}\n")
        for rule in (rule for rule in RULES if rule.group == group):
            side = "up" if rule.above else "down"
            reads = (rule.read.__doc__ or "").strip()
            code = "\n".join(f"    {line}" for line in told(rule.remedy, "name").splitlines())
            place = "the layer" if rule.id in OF_LAYERS else "the norm"
            parts.append(
                f"**`{rule.id}`**, {rule.severity} from {rule.threshold:g} {side}. {reads} Applies where "
                f"{told(rule.applies, place)}. Source: {rule.source}.\n\n{code}\n"
            )
    return "\n".join(parts)


def told(text: str, place: str) -> str:
    """A rule's text with words where a finding has its names and numbers."""
    words = {"site": place, "how": "cannot move", "norm": "a norm", "layer": "a layer", "other": "another norm"}
    text = re.sub(r"\{(\w+)(:[^}]*)?\}", lambda found: words.get(found[1], "…"), text.replace("{{", "\0"))
    return text.replace("\0", "{").replace("}}", "}")


def summary(measured: dict[str, Any]) -> str:
    """What the tables add up to."""
    found = [fired for _, judging in measured["faults"].values() for fired in judging]
    _, held = measured["sound"]
    severities = {rule.id: rule.severity for rule in RULES}
    kinds = [{severities[rule] for rule in fired} for fired in held.values()]
    critical, warned = (sum(kind in some for some in kinds) for kind in ("critical", "warning"))
    setting = [len(measured["sound"][0]), sum(len(halves[0]) for halves in measured["faults"].values())]
    return (
        f"Thresholds were set on {setting[1]} programs with one fault each and {setting[0]} sound ones. "
        f"Of {len(found)} runs of other programs with a fault, {sum(found)} were found. "
        f"Of {len(held)} runs of other sound programs, {critical} got a critical verdict and {warned} a warning."
    )


def main() -> None:
    """Run the programs, keep what came out, and fill the page."""
    if "--check" not in sys.argv:
        write_text_atomically(MEASURED, json.dumps(run(), indent=1) + "\n")
    measured = json.loads(MEASURED.read_text())
    text = filled(PAGE.read_text(), "trust", f"{summary(measured)}\n\n{trust_table(measured).markdown()}")
    text = filled(text, "ports", f"{ports_summary(measured)}\n\n{ports_table(measured).markdown()}")
    text = filled(text, "rules", rules_text())
    if "--check" in sys.argv and text != PAGE.read_text():
        raise SystemExit("docs/doctor.md is not what docs/measurements/doctor.json says; run docs/build_doctor.py")
    write_text_atomically(PAGE, text)


if __name__ == "__main__":
    main()
