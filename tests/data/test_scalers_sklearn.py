"""scikit-learn's own tests of these scalers, run on ours: its test module is loaded with the classes swapped."""

import importlib.util
import inspect
import re
import sys

import pytest
import sklearn.preprocessing
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import _data

from evenkeel import data

SCALERS = ("MaxAbsScaler", "MinMaxScaler", "RobustScaler", "StandardScaler")
NAMED = re.compile(r"\b(MaxAbs|MinMax|Robust|Standard)Scaler\b|\b(maxabs|minmax|robust)_scale\b")
ARRAY_API = "array API dispatch is not used: torch tensors are taken as they are, and learned attributes stay NumPy's"
DESELECTED = {
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


def test_callbacks_hear_of_each_fit_and_are_torn_down_after_an_error():
    pytest.importorskip("sklearn.callback")
    recorder = theirs.RecordingCallback()
    scaler = data.StandardScaler().set_callbacks(recorder)
    make_pipeline(scaler).fit([[1.0], [3.0]])
    scaler.partial_fit([[5.0]])
    hooks = ("setup", "on_fit_task_begin", "on_fit_task_end", "teardown")
    assert [recorder.count_hooks(hook) for hook in hooks] == [2, 2, 2, 2]
    with pytest.raises(ValueError, match="infinity"):
        scaler.fit([[float("inf")]])
    assert [recorder.count_hooks(hook) for hook in hooks] == [3, 3, 2, 3]
    assert clone(scaler).fit([[1.0], [3.0]]).mean_.tolist() == [2.0]


def test_before_scikit_learn_1_9_there_are_no_callbacks(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.callback", None)
    spec = importlib.util.find_spec("evenkeel.data.scalers._callbacks")
    callbacks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(callbacks)

    class Scaler(callbacks.CallbackSupportMixin):
        @callbacks.with_callbacks
        def fit(self):
            with callbacks.fit_task(self, [[1.0]], None):
                return "fitted"

    assert Scaler().fit() == "fitted"
    assert not hasattr(Scaler, "set_callbacks")
