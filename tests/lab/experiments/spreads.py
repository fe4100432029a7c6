"""How far the measurements of synthetic records lie apart over seeds, and the verdicts by their names."""

from evenkeel.lab.experiments import VERDICTS

AGREES, PARTLY, DISAGREES, UNDECIDED = VERDICTS


def near(value, trial):
    """Almost the same value for every seed: a narrow interval."""
    return value * (1 + 1e-3 * trial["seed"])


def wide(value, trial):
    """A value so different from seed to seed that its interval covers both sides of any threshold below it."""
    return value * (0.01, 1.0, 1.99)[trial["seed"]]


def both_signs(value, trial):
    """Positive for one seed and negative for another."""
    return value * (-1, 1, 0.5)[trial["seed"]]
