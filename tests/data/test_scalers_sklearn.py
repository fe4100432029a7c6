"""scikit-learn's own tests of these scalers, run on ours: its test module is loaded with the classes swapped."""

import importlib.util
import inspect
import re

import pytest
import sklearn.preprocessing
from sklearn.preprocessing import _data

from evenkeel import data

SCALERS = ("MaxAbsScaler", "MinMaxScaler", "RobustScaler", "StandardScaler")
NAMED = re.compile(r"\b(MaxAbs|MinMax|Robust|Standard)Scaler\b|\b(maxabs|minmax|robust)_scale\b")
ARRAY_API = "array API dispatch is not used: torch tensors are taken as they are, and learned attributes stay NumPy's"
DESELECTED = {
    "test_standard_scaler_callback_support": "callbacks are experimental in scikit-learn 1.9, and 1.6 has none",
    "test_standard_scaler_sample_weight_array_api": ARRAY_API,
    "test_preprocessing_array_api_compliance": ARRAY_API,
    "test_standard_scaler_array_api_compliance": ARRAY_API,
    "test_preprocessing_integer_array_api_on_float32_only_device": ARRAY_API,
}


def load_with_ours():
    """scikit-learn's test module with our scalers under the names it imports."""
    spec = importlib.util.find_spec("sklearn.preprocessing.tests.test_data")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        for name in SCALERS:
            patch.setattr(sklearn.preprocessing, name, getattr(data, name))
        spec.loader.exec_module(module)
    return module


def listed(mark):
    """A mark whose parameters are a list: pytest warns about the generators that scikit-learn passes."""
    if mark.name != "parametrize":
        return mark
    names, values, *rest = mark.args
    return getattr(pytest.mark, mark.name)(names, list(values), *rest, **mark.kwargs).mark


theirs = load_with_ours()
tests = {name: item for name, item in vars(theirs).items() if name.startswith("test_") and inspect.isfunction(item)}
selected = {name: item for name, item in tests.items() if NAMED.search(inspect.getsource(item))}
for item in selected.values():
    item.pytestmark = [listed(mark) for mark in getattr(item, "pytestmark", [])]
globals().update({name: item for name, item in selected.items() if name not in DESELECTED})

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """scikit-learn's functions (minmax_scale, ...) call our scalers too."""
    for name in SCALERS:
        monkeypatch.setattr(_data, name, getattr(data, name))


def test_ours_are_what_is_tested():
    assert all(getattr(theirs, name) is getattr(data, name) for name in SCALERS)
    assert all(DESELECTED.values())
    assert len(selected) - len(DESELECTED) >= 45
