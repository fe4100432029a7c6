"""The page of a comparison of studies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from evenkeel.lab.studies.page._words import loss_text, opening, spoken, text_of
from evenkeel.report import Axis, Cell, Figure, Finding, Page, Row, Section, Table, dots, format_number, join_words

Entry = Mapping[str, Any]
MOST_NAMED = 3  # arms, in a finding


def comparison_page(summary: Mapping[str, Any]) -> Page:
    """Return the page of a comparison."""
    figure = difference_figure(summary)
    sections = [Section("All arms", tables=[standing_table(summary)])]
    if summary["pairs"]:
        sections.insert(0, Section("The same arm in another study", tables=[pairs_table(summary)]))
    sections.append(Section("What was run", tables=[studies_table(summary), differences_table(summary)]))
    names = join_words([study["name"] for study in summary["studies"]])
    lead = (
        f"The studies {names} learned the same text, {(summary.get('text') or {}).get('source')}. Each arm stands at "
        "its best learning rate. Differences are taken seed by seed, and intervals are those of Student's t over them."
    )
    return Page("Comparison of studies", [lead], comparison_findings(summary), sections, picture=figure)


def comparison_findings(summary: Mapping[str, Any]) -> list[Finding]:
    """Return what the differences say: arms that end lower or higher, those that do not, and the best of all."""
    findings, text = [], text_of(summary.get("text"))
    for word in ("lower", "higher"):
        pairs = [pair for pair in summary["pairs"] if pair.get("seen") == word]
        pairs.sort(key=lambda pair: -abs(pair["difference"]))
        if pairs:
            named = [f"{spoken(pair['arm'])} in {pair['study']}" for pair in pairs[:MOST_NAMED]]
            more = f" and {len(pairs) - MOST_NAMED} more" if len(pairs) > MOST_NAMED else ""
            verb = "ends" if len(pairs) == 1 else "end"
            title = opening(f"{join_words(named)}{more} {verb} {word} than in {join_words(unique(pairs, 'reference'))}")
            findings.append(Finding(title, f"{'; '.join(map(difference_text, pairs[:MOST_NAMED]))} {text.nats}."))
    level = [pair for pair in summary["pairs"] if pair.get("seen") == "no difference seen"]
    if level:
        title = f"No difference seen in {len(level)} of {len(summary['pairs'])} pairs of the same arm"
        shown = f"{'; '.join(map(difference_text, level[:MOST_NAMED]))} {text.nats}."
        findings.append(Finding(title, f"{shown}{without_interval(summary['pairs'])}"))
    best = [entry for entry in summary["standing"] if entry.get("seen")][:1]
    for entry in best:
        title = f"{spoken(entry['arm'])} of {entry['study']} ends lowest, at {text.loss(entry['loss'])}"
        findings.append(Finding(opening(title), standing_text(summary["standing"])))
    return findings or [Finding("Nothing can be compared", "No arm of the studies has finished.")]


def unique(pairs: Sequence[Entry], key: str) -> list[str]:
    """Return the values of an entry, each once."""
    return list(dict.fromkeys(str(pair[key]) for pair in pairs))


def difference_text(entry: Entry) -> str:
    """Return a difference with its interval."""
    return f"{entry['arm']} {signed(entry['difference'])} ({interval_text(entry)}, {entry['seeds']} seeds)"


def standing_text(standing: Sequence[Entry]) -> str:
    """Return which arms cannot be told from the best."""
    level = [f"{spoken(e['arm'])} of {e['study']}" for e in standing[1:] if e.get("seen") == "no difference seen"]
    if not level:
        return "It is told from every other arm whose seeds it shares, or there are too few seeds."
    return (
        f"No difference to it is seen in {join_words(level[:MOST_NAMED])}{' and others' * (len(level) > MOST_NAMED)}."
    )


def without_interval(entries: Sequence[Entry]) -> str:
    """Return how many differences have no interval, by the reason."""
    counts = Counter(entry["seen"] for entry in entries if entry["low"] is None)
    return f" Not told: {', '.join(f'{reason} ({number})' for reason, number in counts.items())}." if counts else ""


def interval_text(entry: Entry) -> str:
    """Return the ends of an interval, or a dash."""
    return "–" if entry.get("low") is None else f"{signed(entry['low'])} to {signed(entry['high'])}"


def signed(value: float | None) -> str:
    """Return a difference with its sign, to as many digits as losses have."""
    return "–" if value is None else f"{'+' if value >= 0 else '−'}{loss_text(abs(value))}"


def pairs_table(summary: Mapping[str, Any]) -> Table:
    """Return the differences between studies, an arm a row."""
    title = f"Final validation loss, {text_of(summary.get('text')).nats}, against the same arm"
    return entries_table(summary["pairs"], title, "against")


def standing_table(summary: Mapping[str, Any]) -> Table:
    """Return all arms of all studies, the lowest loss first, with the difference to the first."""
    title = f"Final validation loss, {text_of(summary.get('text')).nats}, against the best"
    return entries_table(summary["standing"], title, None)


def entries_table(entries: Sequence[Entry], title: str, reference: str | None) -> Table:
    """Return entries with their differences as a table."""
    columns = ["arm", "study", *([reference] if reference else []), "rate", "loss", "difference", "95 % interval"]
    rows: list[list[Cell]] = [
        [
            entry["arm"],
            entry["study"],
            *([entry["reference"]] if reference else []),
            f"{entry['rate']:g}",
            "–" if entry["loss"] is None else loss_text(entry["loss"]),
            signed(entry.get("difference")),
            interval_text(entry),
            entry["seeds"] or "–",
            "; ".join(filter(None, [entry.get("seen", ""), entry["remark"]])),
        ]
        for entry in entries
    ]
    return Table([*columns, "seeds", "remark"], rows, title=title)


def difference_figure(summary: Mapping[str, Any]) -> Figure | None:
    """Return the differences with their intervals: between studies, or to the best where they share no arm."""
    shared = bool(summary["pairs"])
    entries = [entry for entry in (summary["pairs"] if shared else summary["standing"][1:]) if entry.get("seen")]
    rows = [
        Row(f"{e['arm']}, {e['study']}", e["difference"], low=e["low"], high=e["high"], note=e["seen"])
        for e in entries
        if e["difference"] is not None
    ]
    if not rows:
        return None
    reference = "the same arm of the first study" if shared else "the best arm"
    seen = sum(row.note in ("lower", "higher") for row in rows)
    title = f"A difference to {reference} is seen in {seen} of {len(entries)} {'pairs' if shared else 'cases'}"
    panel = dots(rows, x=Axis(f"difference in loss ({text_of(summary.get('text')).nats})", log=False))
    caption = (
        "A dot is the mean of the differences by seed, the whisker its 95 % interval; at 0 there is no difference."
        + without_interval(entries)
    )
    return Figure(name="differences", title=title, caption=caption, panels=[panel])


def studies_table(summary: Mapping[str, Any]) -> Table:
    """Return the versions and the machine of each study."""
    rows: list[list[Cell]] = [
        [
            study["name"],
            study["evenkeel"],
            study["torch"],
            study["python"],
            ", ".join(study["kernels"] or ()),
            (study["machine"] or {}).get("processor"),
            study["created"],
            time_text((study["spent"] or {}).get("seconds")),
        ]
        for study in summary["studies"]
    ]
    columns = ["study", "evenkeel", "torch", "Python", "kernels", "processor", "created", "trainings took"]
    return Table(columns, rows, title="Studies")


def time_text(seconds: float | None) -> str | None:
    """Return a time in words."""
    return None if seconds is None else f"{format_number(seconds)} s"


def differences_table(summary: Mapping[str, Any]) -> Table:
    """Return what is not the same in all studies."""
    names = [study["name"] for study in summary["studies"]]
    rows: list[list[Cell]] = [[key, *map(value_text, values)] for key, values in summary["differences"].items()]
    return Table(["setting", *names], rows or [["nothing", *["–"] * len(names)]], title="What differs")


def value_text(value: Any) -> str:
    """Return a setting, or what is known of a machine, in words."""
    if isinstance(value, Mapping):
        value = [f"{key} {item}" for key, item in value.items()]
    return ", ".join(map(str, value)) if isinstance(value, list) else "–" if value is None else str(value)
