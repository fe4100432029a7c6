"""What every experiment concludes from records whose answer is known: agree, disagree, undecided, and missing data."""

import pytest
from lab.experiments.cases_data import DATA_CASES
from lab.experiments.cases_transformer import TRANSFORMER_CASES
from lab.experiments.spreads import AGREES, UNDECIDED

from evenkeel.lab.experiments import EXPERIMENTS, VERDICTS

CASES = DATA_CASES | TRANSFORMER_CASES
NAMED_CASES = [(name, case) for name, (_, cases) in CASES.items() for case in cases]


def synthetic(name, case, seeds=3):
    """The options of an experiment and a record for every trial, with what the case says that it measures."""
    typed, cases = CASES[name]
    options = EXPERIMENTS[name].read_options({**typed, "seeds": seeds})
    return options, [{**trial, **cases[case][0](trial)} for trial in EXPERIMENTS[name].trials(options)]


def conclusions(name, options, records):
    """The claims, after a look at what any page would show of them and of the figures."""
    claims = EXPERIMENTS[name].judge(options, records)
    texts = [text for claim in claims for text in (claim.claim, claim.measured, claim.source)]
    texts += [text for figure in EXPERIMENTS[name].draw(options, records) for text in (figure.title, figure.caption)]
    assert all(claim.verdict in VERDICTS for claim in claims)
    assert not [text for text in texts if "nan" in text.split() or "None" in text]
    return claims


def lost(value):
    """The value with None for every measured number, as JSON keeps what is not finite."""
    if isinstance(value, dict):
        return {key: lost(item) for key, item in value.items()}
    if isinstance(value, list):
        return [lost(item) for item in value]
    return None if isinstance(value, float) else value


def test_every_experiment_is_judged():
    assert list(CASES) == list(EXPERIMENTS)
    assert all({"agree", "disagree"} <= set(cases) for _, cases in CASES.values())


@pytest.mark.parametrize(("name", "case"), NAMED_CASES)
def test_verdicts_follow_from_the_records(name, case):
    verdicts = CASES[name][1][case][1]
    assert [claim.verdict for claim in conclusions(name, *synthetic(name, case))] == verdicts


# What one seed cannot decide: claims about an estimate; the others compare numbers that have no uncertainty.
ONE_SEED = {
    "feature-scaling": [UNDECIDED, AGREES, UNDECIDED],
    "batchnorm-noise": [UNDECIDED, UNDECIDED, UNDECIDED, AGREES],
    "covariate-shift": [UNDECIDED, UNDECIDED, UNDECIDED],
    "norm-before-activation": [UNDECIDED, UNDECIDED],
    "recurrent": [UNDECIDED, UNDECIDED],
    "centring": [UNDECIDED],
    "bias-terms": [UNDECIDED, UNDECIDED],
}


@pytest.mark.parametrize("name", ONE_SEED)
def test_one_seed_decides_no_estimate(name):
    assert [claim.verdict for claim in conclusions(name, *synthetic(name, "agree", seeds=1))] == ONE_SEED[name]


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_cut_short_claims_nothing_false(name):
    """With the first records alone, a claim agrees, is undecided or not made: none disagrees for want of data."""
    options, records = synthetic(name, "agree")
    for kept in range(len(records)):
        verdicts = {claim.verdict for claim in conclusions(name, options, records[:kept])}
        assert verdicts <= {AGREES, UNDECIDED}, kept


@pytest.mark.parametrize("name", CASES)
def test_trials_that_are_missing_claim_nothing_false(name):
    options, records = synthetic(name, "agree")
    for axis in EXPERIMENTS[name].trials(options)[0]:
        for value in {record[axis] for record in records}:
            rest = [record for record in records if record[axis] != value]
            assert {claim.verdict for claim in conclusions(name, options, rest)} <= {AGREES, UNDECIDED}, (axis, value)


@pytest.mark.parametrize("name", CASES)
def test_measurements_that_were_lost_leave_a_verdict_or_nothing(name):
    options, records = synthetic(name, "agree")
    trial = EXPERIMENTS[name].trials(options)[0]
    for key in [key for key in records[0] if key not in trial]:
        for stride in (1, 2):
            damaged = [{**r, key: lost(r[key])} if i % stride == 0 else r for i, r in enumerate(records)]
            conclusions(name, options, damaged)
    everything = [{key: value if key in trial else lost(value) for key, value in r.items()} for r in records]
    conclusions(name, options, everything)
