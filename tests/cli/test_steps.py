"""What commands tell of the step at which they are."""

import threading

from evenkeel.cli import steps


def test_a_long_step_is_told_in_lines(monkeypatch, capsys):
    said, lines = threading.Event(), []
    monkeypatch.setattr(steps, "PATIENCE", 0.01)
    monkeypatch.setattr(steps, "PAUSE", 0.01)
    monkeypatch.setattr(steps, "say", lambda line: (lines.append(line), said.set()))
    with steps.telling_steps() as step:
        for name in ("reading my.model:build", "recognising it"):
            step(name)
            said.clear()
            assert said.wait(20)
    assert "reading my.model:build: 0 s" in lines
    assert lines[-1] == "recognising it: 0 s"


def test_a_short_step_is_not_told(capsys):
    with steps.telling_steps() as step:
        step("reading")
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_the_step_and_keeps_nothing(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(steps, "shows_bars", lambda: True)
    monkeypatch.setattr("rich.progress.Progress.update", lambda bars, task, description: shown.append(description))
    with steps.telling_steps() as step:
        step("reading a large model")
    assert shown == ["reading a large model"]
    assert "reading" not in capsys.readouterr().err
