"""Every rule finds its fault, and sound programs stay silent; docs/build_doctor.py makes the table of all of them."""

import importlib.util
import json
from pathlib import Path

import pytest
from doctor.faults.faulty import FAULTY
from doctor.faults.healthy import TRAPS, healthy
from doctor.faults.more_healthy import MORE

from evenkeel.doctor import RULES

MEASURED = Path(__file__).parents[2] / "docs" / "measurements" / "doctor.json"
SEVERITIES = {rule.id: rule.severity for rule in RULES}
SOUND = healthy()
QUICK = [name for name in SOUND if name.endswith("as made") and "watched" not in name][::3]
FAST = [*QUICK, *TRAPS, *(name for name in MORE if not name.startswith(("an average", "replicas")))]
FIRST = {rule: min(programs, key=lambda name: "watched" in name) for rule, programs in FAULTY.items()}
OTHER_FAULTS = [(rule, name) for rule, programs in FAULTY.items() for name in programs if name != FIRST[rule]]


def verdicts(report):
    """What is worse than a note."""
    return [(f.severity, f.rule, f.site, f.message) for f in report.findings if f.severity != "note"]


def check_fault(rule, name):
    report = FAULTY[rule][name]()
    found = [finding for finding in report.findings if finding.rule == rule]
    assert found, [finding.rule for finding in report.findings]
    for finding in found:
        assert finding.severity == SEVERITIES[rule]
        assert report.ok == (not any(f.severity == "critical" for f in report.findings))
        assert all((finding.message, finding.remedy, finding.source, finding.applies_because, finding.evidence))
        assert "{" not in finding.message + finding.applies_because
        assert any(finding.trace.values)
        compile(finding.remedy, finding.rule, "exec") if not remedy_is_inside_a_function(finding.remedy) else None


def remedy_is_inside_a_function(code):
    """Whether a remedy is a part of a loop."""
    return "continue" in code


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=pytest.mark.slow) if rule == "replicas-differ" else rule for rule in FAULTY]
)
def test_a_rule_finds_its_fault(rule):
    check_fault(rule, FIRST[rule])


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "name"), OTHER_FAULTS)
def test_a_rule_finds_every_other_fault(rule, name):
    check_fault(rule, name)


@pytest.mark.parametrize("name", FAST)
def test_a_sound_program_is_silent(name):
    assert verdicts(SOUND[name]()) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SOUND if name not in FAST])
@pytest.mark.filterwarnings("ignore")  # transformers'
def test_every_sound_program_is_silent(name):
    assert verdicts(SOUND[name]()) == []


def test_every_rule_has_programs_and_keeps_its_promise():
    measured = json.loads(MEASURED.read_text())
    assert set(FAULTY) == set(SEVERITIES) == set(measured["faults"])
    assert all(len(programs) >= 3 for programs in FAULTY.values())
    assert len(SOUND) >= 60
    for setting, judging in measured["faults"].values():
        assert len(setting) + len(judging) >= 3
        assert sum(judging) >= 0.9 * len(judging)
    kinds = [{SEVERITIES[rule] for rule in fired} for half in measured["sound"] for fired in half.values()]
    assert not any("critical" in some for some in kinds)
    assert sum("warning" in some for some in kinds) < 0.02 * len(kinds)


def test_the_page_is_made_of_the_rules_and_the_measurements():
    spec = importlib.util.spec_from_file_location("build_doctor", MEASURED.parents[1] / "build_doctor.py")
    builder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builder)
    measured = json.loads(MEASURED.read_text())
    text = builder.PAGE.read_text()
    trust = f"{builder.summary(measured)}\n\n{builder.trust_table(measured).markdown()}"
    ports = f"{builder.ports_summary(measured)}\n\n{builder.ports_table(measured).markdown()}"
    parts = {"trust": trust, "ports": ports, "rules": builder.rules_text()}
    assert all(builder.filled(text, name, content) == text for name, content in parts.items())
    assert all(f"<!-- {name} -->" in text for name in parts)
    assert all(f"**`{rule.id}`**" in text for rule in RULES)
