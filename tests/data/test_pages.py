"""The pages of statistics and drift: a row for each feature, what is peculiar first; and what a fit says on the way."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from evenkeel.cli import main
from evenkeel.data import Statistics, compare
from evenkeel.data.views import drift_page, show_page


def peculiar_table(rows=400):
    random = np.random.default_rng(0)
    table = {f"plain{number}": random.normal(3, 2, rows) for number in range(24)}
    spike = random.normal(0, 1, rows)
    spike[7] = 500.0
    table |= {"spike": spike, "skew": random.exponential(2, rows), "large": random.normal(0, 1e7, rows)}
    table |= {"few": random.integers(0, 3, rows) * 1.0, "fixed": np.full(rows, 7.0), "empty": np.full(rows, np.nan)}
    gaps = random.normal(0, 1, rows)
    gaps[::3] = np.nan
    return table | {"gaps": gaps}


FLAGS = {"empty": "all missing", "fixed": "constant", "gaps": "missing 34%", "spike": "outliers"}
FLAGS |= {"large": "scale 1e+07", "skew": "skewed", "few": "discrete: 3 values"}


def test_the_page_has_a_row_for_each_feature_the_flagged_first():
    statistics = Statistics(names=list(peculiar_table()), quantiles=True).update(
        np.stack(list(peculiar_table().values()), axis=1)
    )
    page = show_page(statistics, "stats.json")
    section = page.sections[0]
    table = section.tables[0]
    assert section.title == "7 of 31 features have a flag"
    assert list(table.columns[:3]) == ["feature", "histogram", "flags"]
    assert {row[0]: row[2] for row in table.rows if row[2]} == FLAGS
    assert [row[0] for row in table.rows[:8]] == [*FLAGS, "plain0"]
    for row in table.rows[1:]:
        counts = row[1].counts
        at = statistics.names.index(row[0])
        assert 0.99 * statistics.count[at] <= sum(counts) <= statistics.count[at]
    assert table.rows[0][1] == ""
    assert [panel.heading for panel in page.sections[1].figures[0].panels] == ["gaps", "spike"]


def test_without_quantiles_the_page_flags_what_moments_tell():
    columns = peculiar_table()
    statistics = Statistics(names=list(columns)).update(np.stack(list(columns.values()), axis=1))
    table = show_page(statistics, "stats.json").sections[0].tables[0]
    flags = {row[0]: row[1] for row in table.rows if row[1]}
    assert flags == {name: FLAGS[name] for name in ("empty", "fixed", "gaps", "large")}


def test_the_page_of_a_check_has_what_fails_first():
    columns = peculiar_table()
    before = Statistics(names=list(columns), quantiles=True).update(np.stack(list(columns.values()), axis=1))
    columns["plain7"] = columns["plain7"] + 50
    now = Statistics(names=list(columns), quantiles=True).update(np.stack(list(columns.values()), axis=1))
    page = drift_page(compare(before, now), before, now, "stats.json", "new.parquet")
    section = page.sections[0]
    first = section.tables[0].rows[0]
    assert section.title == "1 of 31 features fails"
    assert first[0] == "plain7"
    assert "mean shifted" in first[2]
    assert sum(first[1].before) > 0
    assert sum(map(bool, (row[2] for row in section.tables[0].rows))) == 1
    page = drift_page(compare(before, before), before, before, "stats.json", "same.parquet")
    assert page.sections[0].title == "None of 31 features fails"


def test_fit_names_what_it_left_out_and_what_no_scaler_can_use(tmp_path, capsys):
    pq.write_table(pa.table(peculiar_table() | {"city": ["x"] * 400}), tmp_path / "t.parquet")
    assert (
        main(["data", "fit", str(tmp_path / "t.parquet"), "--numeric", "--out", str(tmp_path / "s.json"), "--quiet"])
        == 0
    )
    assert capsys.readouterr().err.splitlines() == [
        "left out, as they hold no numbers: city (string)",
        "warning: all values are missing: empty; leave such columns out with --columns",
        "warning: constant: fixed; such columns carry nothing and are divided by 1",
    ]
    (tmp_path / "x.csv").write_text("a,b\n1,2\n2,3\nthree,4\n4,7\n")
    assert (
        main(["data", "fit", str(tmp_path / "x.csv"), "--numeric", "--out", str(tmp_path / "x.json"), "--quiet"]) == 0
    )
    assert capsys.readouterr().err == (
        "left out, as they hold no numbers: a (string: 'three' in row 4 among numbers)\n"
    )
