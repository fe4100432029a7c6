"""Tables that are more than files: queries, Delta tables, data sets saved to disk."""

import adbc_driver_sqlite.dbapi as sqlite
import datasets
import deltalake
import duckdb
import numpy as np
import pyarrow as pa
import pytest

from evenkeel import InvalidArgumentError, SourceError
from evenkeel.cli import main
from evenkeel.data import fit, fit_statistics, load
from evenkeel.data.sources._transfers import one_line


@pytest.fixture
def columns():
    rng = np.random.default_rng(0)
    return pa.table({"a": rng.normal(1e4, 1, 300_000), "b": rng.normal(size=300_000), "word": ["x"] * 300_000})


@pytest.fixture
def database(columns, tmp_path):
    path = tmp_path / "my file.db"
    with duckdb.connect(str(path)) as connection:
        connection.register("columns", columns)
        connection.execute("CREATE TABLE people AS SELECT * FROM columns")
    return path


def url_of(database, query):
    return f"duckdb:///{database}?query={query}"


def test_a_query_is_read_batch_by_batch(database, columns):
    found = fit_statistics(url_of(database, "SELECT a, 2 * b AS b FROM people WHERE b > 0"))
    positive = columns["b"].to_numpy() > 0
    assert found.names == ("a", "b")
    assert found.rows == positive.sum()
    np.testing.assert_allclose(found.mean[1], 2 * columns["b"].to_numpy()[positive].mean(), rtol=1e-12)
    with pytest.raises(SourceError, match=r"not numbers: word \(string\)"):
        fit(url_of(database, "SELECT * FROM people"))
    assert fit(url_of(database, "SELECT * FROM people"), columns="numeric").n_features_in_ == 2
    assert fit_statistics("duckdb:///?query=SELECT 1.5 AS a UNION ALL SELECT 2.5").mean.tolist() == [2.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT a FROM (VALUES (1.0), (2.0), (3.0)) t(a) WHERE a::INT & 1 = 1", [1.0, 3.0]),
        ("SELECT 1+1 AS a", [2.0]),
        ("SELECT%2021%2510%20AS%20a;", [1.0]),
        ("SELECT #1 AS a FROM (VALUES (4)) t(b)", [4.0]),
        ("SELECT CASE WHEN '?=' = '?=' THEN 5 END AS a", [5.0]),
    ],
)
def test_all_that_follows_is_the_query(text, expected):
    found = fit_statistics(f"duckdb:///?query={text}")
    assert (found.rows, found.mean.tolist()) == (len(expected), [sum(expected) / len(expected)])


def test_what_was_never_asked_has_no_rows_and_what_is_read_once_cannot_go_on(database, tmp_path):
    message = r"^this connection holds no result; call its execute\('SELECT"
    with duckdb.connect(str(database), read_only=True) as connection:
        fetched = connection.cursor().execute("SELECT 1 AS a")
        fetched.fetchall()
        for source in (connection, fetched):
            with pytest.raises(SourceError, match=message):
                fit(source)
    with pytest.raises(InvalidArgumentError, match=r"^this query \(duckdb:///.*\) is read once, in this process"):
        fit(url_of(database, "SELECT a FROM people"), resume=tmp_path / "states")


def test_connections_and_relations(database, columns):
    with duckdb.connect(str(database), read_only=True) as connection:
        expected = fit_statistics(connection.sql("SELECT a, b FROM people"))
        assert expected.rows == columns.num_rows
        found = fit_statistics(connection.execute("SELECT a, b FROM people"))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-14)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("duckdb:///none.db?query=SELECT 1", "there is no database none.db; .* four slashes: duckdb:////none.db"),
        ("duckdb:////tmp/none.db?query=SELECT 1", "there is no database /tmp/none.db$"),
        ("duckdb:///?query=SELEC 1", "the query failed: .*syntax error"),
        ("duckdb:///file.db", "names no query; write duckdb:///file.db[?]query=SELECT"),
        ("duckdb:///?query=SELECT 1 AS a WHERE a > 2", "^the query gives no rows; there is nothing"),
        ("duckdb:///?threads=1&query=SELECT 1", "have the parameter query alone, but got 'threads'; write duckdb"),
        ("duckdb:///?query=SELECT 1 AS a; SELECT 2 AS a", "expected one statement, but the query has 2"),
        ("duckdb:///?query=COPY (SELECT 1 AS a) TO 'x.csv'", r"a query is read, but this one writes \(COPY\)"),
        ("duckdb:///?query=SELECT 21%10 AS a", "a % before digits that stand for no sign of a text; .*, and % as %25"),
    ],
)
def test_what_is_wrong_with_a_query_is_one_line(url, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=message) as caught:
        fit(url)
    assert "\n" not in str(caught.value)


def test_the_command_fits_a_query(database, tmp_path, capsys):
    out = tmp_path / "s.json"
    query = url_of(database, "SELECT a FROM people")
    assert main(["data", "fit", query, "--out", str(out), "--quiet"]) == 0
    assert load(out).statistics_.rows == 300_000
    assert main(["data", "check", query, "--stats", str(out), "--quiet"]) == 0
    assert main(["data", "fit", query, "--out", str(out), "--force", "--engine", "ray"]) == 2
    assert "is read once, in this process" in capsys.readouterr().err


def test_the_cursor_of_any_driver_of_adbc_is_read_batch_by_batch(columns, tmp_path):
    query = "SELECT a, 2 * b AS b, word FROM people WHERE b > 0"
    with sqlite.connect(str(tmp_path / "people.db")) as connection:
        cursors = [connection.cursor() for _ in range(4)]
        cursors[0].adbc_ingest("people", columns)
        for cursor in cursors[1:3]:
            cursor.execute(query)
        with pytest.raises(SourceError, match=r"not numbers: word \(string\)"):
            fit(cursors[1])
        found = fit_statistics(cursors[2], columns="numeric")
        with pytest.raises(SourceError, match=r"^the query failed: .*execute") as caught:
            fit(cursors[3])
        for cursor in cursors:
            cursor.close()
    positive = columns["b"].to_numpy() > 0
    assert (found.names, found.rows) == (("a", "b"), positive.sum())
    np.testing.assert_allclose(found.mean[1], 2 * columns["b"].to_numpy()[positive].mean(), rtol=1e-12)
    assert "\n" not in str(caught.value)


def test_a_query_that_fails_on_its_way_is_one_line():
    late = "SELECT CASE WHEN i < 2500000 THEN i ELSE CAST('word' || i AS INTEGER) END AS a FROM range(3000000) t(i)"
    with pytest.raises(SourceError, match=r"^the query failed: .*word25"):
        fit(f"duckdb:///?query={late}")


@pytest.fixture
def delta(tmp_path):
    """A Delta table with files that count no more, and folders with signs that addresses spell otherwise."""
    path = tmp_path / "my table"
    for mode, offset in (("overwrite", 100.0), ("overwrite", 0.0), ("append", 5.0)):
        table = pa.table({"a": np.arange(6.0) + offset, "part": pa.array([1, 2, 3] * 2), "key": ["x y", "z"] * 3})
        deltalake.write_deltalake(path, table, mode=mode, partition_by=["key", "part"])
    return path


def test_a_delta_table_is_the_files_that_its_log_names(delta):
    found = fit_statistics(delta, columns=["a", "part"])
    assert found.rows == 12
    np.testing.assert_allclose(found.mean, [5.0, 2.0])
    assert found.maximum.tolist() == [10.0, 3.0]


def test_a_delta_table_in_a_store(delta, store):
    url = store.upload(delta, "table")
    found = fit_statistics(url, columns=["a", "part"], storage_options=store.options)
    assert found.to_bytes() == fit_statistics(delta, columns=["a", "part"]).to_bytes()


def test_a_delta_table_in_the_store_that_a_variable_names(delta, store, monkeypatch):
    url = store.upload(delta, "table")
    expected = fit_statistics(delta, columns=["a", "part"]).to_bytes()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")  # which the options overrule
    options = store.options | {"connect_timeout": 5, "request_timeout": 2.5, "anonymous": "no"}
    assert fit_statistics(url, columns=["a", "part"], storage_options=options).to_bytes() == expected
    for name, value in store.variables.items():
        monkeypatch.setenv(name, value)
    assert fit_statistics(url, columns=["a", "part"]).to_bytes() == expected


def test_what_a_library_says_of_itself_is_left_out(delta):
    for path in (delta / "_delta_log").iterdir():
        path.write_bytes(b"broken" * 30)
    with pytest.raises(SourceError, match="this Delta table cannot be read: ") as caught:
        fit(delta, columns=["a"])
    assert not any(noise in str(caught.value) for noise in ("\n", "\x1b", "unknown>", ".rs:", "nptl"))
    text = "LanceError(IO): \x1b[31mbroken\x1b[0m, /home/user/lance-io/utils.rs:172:20\n   0: <unknown>\n   1: main"
    assert one_line(OSError(text)) == "LanceError(IO): broken"
    assert one_line(OSError("cannot open part: 3.csv\n  at row 5")) == "cannot open part: 3.csv at row 5"


def test_a_delta_table_with_deleted_rows_is_refused(delta, monkeypatch):
    class Protocol:
        reader_features, min_reader_version = ["deletionVectors"], 3

    monkeypatch.setattr(deltalake.DeltaTable, "protocol", lambda self: Protocol)
    with pytest.raises(SourceError, match="uses deletionVectors: it has rows that are marked as deleted"):
        fit(delta, columns=["a"])


def test_a_data_set_saved_to_disk(tmp_path, columns, store):
    whole = datasets.Dataset(columns.slice(0, 1000)).shuffle(seed=0)
    whole.save_to_disk(tmp_path / "one", num_shards=3)
    found = fit_statistics(tmp_path / "one", columns=["a", "b"])
    np.testing.assert_allclose(found.mean, fit_statistics(whole, columns=["a", "b"]).mean, rtol=1e-14)
    url = store.upload(tmp_path / "one", "one")
    assert fit_statistics(url, columns="numeric", storage_options=store.options).to_bytes() == found.to_bytes()
    datasets.DatasetDict({"train": whole, "test": whole}).save_to_disk(tmp_path / "two")
    with pytest.raises(SourceError, match=r"holds the splits test, train; give one, such as .*two/test"):
        fit(tmp_path / "two", columns="numeric")
