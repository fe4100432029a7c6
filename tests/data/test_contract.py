"""Files and the input contract: what was fitted comes back to the last bit, and says when other data comes."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from evenkeel import ContractError, EvenkeelError, InvalidArgumentError, InvalidTypeError, StateError
from evenkeel.data import (
    Contract,
    ContractWarning,
    GroupStatistics,
    ImageNormalize,
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
    Statistics,
    load,
    save,
)

FRAME = pd.DataFrame(
    {
        "age": np.random.default_rng(0).normal(40, 12, 400),
        "income": np.random.default_rng(1).lognormal(10, 1, 400),
        "score": np.random.default_rng(2).normal(0, 1, 400),
    }
)
PIXELS = np.random.default_rng(0).integers(0, 256, (400, 3)).astype(np.uint8)
SAMPLES = np.random.default_rng(0).normal(0, 6000, (400, 2)).astype(np.int16)
each_format = pytest.mark.parametrize("suffix", [".json", ".safetensors"])


@each_format
@pytest.mark.parametrize("options", [{}, {"quantiles": True}, {"axis": (1, 2)}], ids=repr)
def test_group_statistics_survive_saving(options, suffix, tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 3) if "axis" not in options else (60, 3, 2))
    groups = GroupStatistics(**options).update(x, ["a", "b", "b"] * 20)
    found = load(save(groups, tmp_path / f"groups{suffix}"))
    assert isinstance(found, GroupStatistics)
    assert list(found) == list(groups) == ["a", "b"]
    assert all(found[key].to_bytes() == groups[key].to_bytes() for key in groups)
    assert found.update(x[:1], ["a"])["a"].rows == groups["a"].rows + 1


@each_format
@pytest.mark.parametrize(
    "scaler",
    [
        StandardScaler(ddof=1, constant="zero"),
        StandardScaler(with_mean=False),
        MinMaxScaler(feature_range=(-1, np.float64(2)), clip=True),
        MaxAbsScaler(),
        RobustScaler(quantile_range=(5.0, 95.0), unit_variance=True),
        RobustScaler(sketch_size=64),
    ],
    ids=repr,
)
def test_scalers_come_back_to_the_last_bit(scaler, suffix, tmp_path):
    fitted = scaler.fit(FRAME) if scaler.get_params().get("sketch_size") != 64 else scaler.partial_fit(FRAME)
    fitted.annotate(units={"age": "years"}, source={"file": "people.parquet", "sha256": "ab"})
    path = save(fitted, tmp_path / f"scaler{suffix}")
    again = load(path)
    assert type(again) is type(fitted)
    assert (again.transform(FRAME) == fitted.transform(FRAME)).all()
    assert (again.inverse_transform(FRAME.to_numpy()) == fitted.inverse_transform(FRAME.to_numpy())).all()
    for name, value in vars(fitted).items():
        if isinstance(value, np.ndarray) and name.endswith("_"):
            assert np.array_equal(getattr(again, name), value), name
    contract = again.contract_
    assert contract == fitted.contract_
    assert contract.names == ("age", "income", "score")
    assert contract.dtypes == ("float64",)
    assert contract.units == {"age": "years"}
    assert contract.source == {"file": "people.parquet", "sha256": "ab"}
    assert contract.ddof == fitted.get_params().get("ddof", 0)
    assert again.on_mismatch == "raise"
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@each_format
def test_statistics_and_images_come_back(suffix, tmp_path):
    statistics = Statistics(quantiles=True, names=["a", "b"]).update(SAMPLES)
    again = load(save(statistics, tmp_path / f"s{suffix}"))
    assert again.to_bytes() == statistics.to_bytes()
    pictures = [np.random.default_rng(i).integers(0, 256, (5, 4, 3)).astype(np.uint8) for i in range(3)]
    fitted = ImageNormalize.fit(pictures, definition="per-image", dtype=torch.bfloat16)
    for item in (fitted, ImageNormalize.preset("clip")):
        restored = load(save(item, tmp_path / f"i{suffix}"), on_mismatch="warn")
        assert repr(restored) == repr(item)
        assert (restored.mean, restored.std, restored.dtype) == (item.mean, item.std, item.dtype)
        assert torch.equal(restored(pictures[0]), item(pictures[0]))
        assert restored.on_mismatch == "warn"
    restored = load(save(fitted, tmp_path / f"i{suffix}"))
    assert (restored.statistics_.std("pooled") == fitted.statistics_.std("pooled")).all()
    assert restored.statistics_.images == 3


def test_json_is_readable_and_deterministic(tmp_path):
    scaler = StandardScaler().fit(FRAME)
    path = save(scaler, tmp_path / "scaler.json")
    content = json.loads(path.read_text())
    assert content["format"] == "evenkeel/data"
    assert content["settings"]["kind"] == "StandardScaler"
    assert content["settings"]["contract"]["names"] == ["age", "income", "score"]
    assert content["settings"]["contract"]["mean"] == scaler.mean_.tolist()
    for name in ("a.json", "a.safetensors"):
        first = save(scaler, tmp_path / name).read_bytes()
        assert save(scaler, tmp_path / name).read_bytes() == first


@each_format
def test_bad_files_give_one_clear_error(suffix, tmp_path):
    path = save(RobustScaler().fit(FRAME), tmp_path / f"good{suffix}")
    data = path.read_bytes()
    bad = tmp_path / f"bad{suffix}"
    for content in (b"", data[: len(data) // 2], b"[1]", b"{}", b"\x93NUMPY" + bytes(99), b"\xff\xfe\x00"):
        bad.write_bytes(content)
        with pytest.raises(StateError) as caught:
            load(bad)
        assert str(bad) in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
    newer = {".json": (b'"version": 1', b'"version": 7'), ".safetensors": (rb"\"version\": 1", rb"\"version\": 7")}
    bad.write_bytes(data.replace(*newer[suffix]))
    with pytest.raises(StateError, match="version 7"):
        load(bad)
    bad.write_bytes(data.replace(b"RobustScaler", b"ShinyScaler2"))
    with pytest.raises(StateError, match="does not know"):
        load(bad)
    other = Statistics().update(SAMPLES).to_bytes() if suffix == ".safetensors" else b'{"format": "x", "version": 1}'
    bad.write_bytes(other)
    with pytest.raises(StateError, match="check the file"):
        load(bad)


def test_damaged_settings_are_refused(tmp_path):
    path = save(StandardScaler().fit(FRAME), tmp_path / "scaler.json")
    good = json.loads(path.read_text())
    for damage in (
        {"kind": "Statistics", "statistics": None},
        {"parameters": {"power": 2}},
        {"parameters": {"constant": "maybe"}},
        {"parameters": None},
        {"statistics": {"features": 7}},
        {"learned": None},
        {"learned": {"transform": 1}},  # only known attributes are set, whatever a file asks for
    ):
        path.write_text(json.dumps(good | {"settings": good["settings"] | damage}))
        with pytest.raises(StateError):
            load(path)
    path.write_text(json.dumps(good | {"state": good["state"] | {"m2": "AA=="}}))
    with pytest.raises(StateError):
        load(path)


def test_paths_and_objects_that_cannot_be_saved(tmp_path):
    scaler = StandardScaler().fit(FRAME)
    with pytest.raises(InvalidArgumentError, match="json"):
        save(scaler, tmp_path / "scaler.pkl")
    with pytest.raises(InvalidArgumentError, match="json"):
        load(tmp_path / "scaler")
    with pytest.raises(InvalidArgumentError, match="on_mismatch"):
        load(tmp_path / "scaler.json", on_mismatch="shout")
    with pytest.raises(EvenkeelError, match="cannot write"):
        save(scaler, tmp_path / "no" / "scaler.json")
    with pytest.raises(EvenkeelError, match="cannot read"):
        load(tmp_path / "none.json")
    for item in (StandardScaler(), 3):
        with pytest.raises(InvalidTypeError, match="save"):
            save(item, tmp_path / "x.json")


def served(item, tmp_path, **options):
    return load(save(item, tmp_path / "item.safetensors"), **options)


@pytest.mark.parametrize(
    ("fitted_on", "given", "expected"),
    [
        (PIXELS, PIXELS / 255, "divided by 255"),
        (PIXELS / 255, (PIXELS / 255) * 255, "multiplied by 255"),
        (PIXELS / 255, PIXELS / 255 / 255, "divided by 255"),
        (PIXELS / 255, PIXELS, "uint8, which cannot hold"),
        (SAMPLES, SAMPLES.view(np.uint8)[:, :2], "uint8, which cannot hold"),
        (FRAME.to_numpy(), FRAME.to_numpy() + np.array([500, 0, 0]), "leave the range seen"),
        (FRAME.to_numpy(), torch.from_numpy(FRAME.to_numpy() * 1000), "multiplied by 1000|leave the range"),
    ],
    ids=["/255", "x255", "/255 twice", "raw bytes", "int16 as uint8", "outside", "units"],
)
def test_other_data_is_noticed(fitted_on, given, expected, tmp_path):
    strict = served(StandardScaler().fit(fitted_on), tmp_path)
    strict.transform(fitted_on)  # what it was fitted on passes
    with pytest.raises(ContractError, match=expected):
        strict.transform(given)
    lenient = served(StandardScaler().fit(fitted_on), tmp_path, on_mismatch="warn")
    with pytest.warns(ContractWarning, match=expected):
        lenient.transform(given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        served(StandardScaler().fit(fitted_on), tmp_path, on_mismatch="ignore").transform(given)


def test_columns_are_noticed(tmp_path):
    strict = served(StandardScaler().fit(FRAME), tmp_path)
    with pytest.raises(ValueError, match="order"):  # scikit-learn's own check
        strict.transform(FRAME[["income", "age", "score"]])
    with pytest.raises(ValueError, match="missing"):
        strict.transform(FRAME[["age", "income"]])
    contract = strict.contract_
    assert contract.problems(FRAME) == []
    for frame, expected in (
        (FRAME[["income", "age", "score"]], "another order: expected age, income, score, but got income, age"),
        (FRAME[["age", "score"]], "the columns income are missing"),
        (FRAME.assign(x=1.0), "the columns x were not there"),
        (np.ones((3, 2)), "expected 3 features"),
    ):
        with pytest.raises(ContractError, match=expected):
            contract.check(frame)
        with pytest.warns(ContractWarning, match=expected):
            contract.check(frame, on_mismatch="warn")
        contract.check(frame, on_mismatch="ignore")
    with pytest.raises(InvalidArgumentError, match="on_mismatch"):
        contract.check(np.ones((3, 2)), on_mismatch="shout")


@pytest.mark.parametrize("rows", [1, 2, 5, 50, 400])
def test_samples_of_the_same_data_pass(rows):
    random = np.random.default_rng(rows)
    columns = (random.normal(size=3000), random.lognormal(0, 1, 3000), random.exponential(9, 3000), random.random(3000))
    table = np.stack(columns, axis=1)
    contract = Contract.from_statistics(Statistics().update(table))
    for start in range(0, 3000, max(rows, 100)):
        assert contract.problems(table[start : start + rows]) == []
    assert contract.problems(table.astype(np.float32)) == []
    assert contract.problems(torch.from_numpy(table).reshape(3, -1, 4)) == []
    assert contract.problems(table[:0]) == []


@pytest.mark.parametrize(
    ("seen", "given", "passes"),
    [
        ("int16", "int32", True),
        ("int16", "float32", True),
        ("uint8", "int16", True),
        ("int16", "uint8", False),
        ("uint8", "int8", False),
        ("int64", "int16", False),
        ("float32", "float16", True),
        ("float32", "int64", True),
        ("float32", "uint8", False),
        ("float32", "bool", False),
    ],
)
def test_dtypes_have_to_hold_what_was_seen(seen, given, passes):
    contract = Contract.from_statistics(Statistics().update(np.array([[0], [1]], dtype=seen)))
    assert (contract.problems(np.array([[0], [1]], dtype=given)) == []) == passes


def test_contracts_of_constant_and_empty_features():
    contract = Contract.from_statistics(Statistics().update(np.full((10, 1), 3.0)))
    assert contract.problems(np.full((4, 1), 3.0)) == []
    assert "leave the range" in contract.problems(np.full((4, 1), 4.0))[0]
    empty = Contract.from_statistics(Statistics().update(np.full((10, 1), np.nan)))
    assert empty.problems(np.ones((3, 1))) == []
    assert Contract(features=2).problems(np.ones((3, 2))) == []
    assert contract.annotated(units="m").to_dict()["units"] == "m"
