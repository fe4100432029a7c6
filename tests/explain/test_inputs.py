"""Numbers from text and files, and what is said of wrong ones."""

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import evenkeel as ek
from evenkeel import InvalidInputError
from evenkeel.explain import parse_numbers, read_input, walk


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 2 3", [1, 2, 3]),
        ("1,-2.5, 1e-3", [1.0, -2.5, 1e-3]),
        ("1 2; 3 4", [[1, 2], [3, 4]]),
        ("1\n2\n3\n", [[1], [2], [3]]),
        ("[[1, 2], [3, 4.5]]", [[1.0, 2.0], [3.0, 4.5]]),
        ("inf -inf", [float("inf"), float("-inf")]),
    ],
)
def test_numbers_as_typed(text, expected):
    assert parse_numbers(text).tolist() == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the input is empty"),
        ("1 two", "'two' in the input is not a number"),
        ("1 2; 3", "row 1 has 2, row 2 has 1"),
        ("[[1, 2], [3]]", "different lengths"),
        ("[1, ", "is not JSON"),
        ('["a"]', "nested lists of numbers"),
    ],
)
def test_wrong_text_is_one_line(text, message):
    with pytest.raises(ek.EvenkeelError, match=message) as caught:
        parse_numbers(text)
    assert "\n" not in str(caught.value)


def test_files_of_every_kind(tmp_path):
    x = torch.randn(3, 4)
    np.save(tmp_path / "x.npy", x.numpy())
    np.savez(tmp_path / "x.npz", a=x.numpy(), b=np.zeros(2))
    save_file({"w": x.bfloat16()}, tmp_path / "x.safetensors")
    (tmp_path / "x.json").write_text(str(x.tolist()))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4.5\n")
    (tmp_path / "ids.csv").write_text("1,2\n3,4\n")
    assert torch.equal(read_input(tmp_path / "x.npy"), x)
    assert torch.equal(read_input(tmp_path / "x.npz", key="a"), x)
    assert torch.equal(read_input(tmp_path / "x.safetensors"), x.bfloat16())
    assert torch.equal(read_input(tmp_path / "x.json"), torch.tensor(x.tolist(), dtype=torch.float64))
    assert read_input(tmp_path / "x.csv").tolist() == [[1.0, 2.0], [3.0, 4.5]]
    assert read_input(tmp_path / "ids.csv").dtype == torch.int64


def test_an_image_is_explained_channel_by_channel(tmp_path):
    colours = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(colours).save(tmp_path / "x.png")
    e = ek.explain.walk(read_input(tmp_path / "x.png"), "image")
    wanted = (colours / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    assert np.allclose(e.step("output").value, wanted, atol=1e-13)
    assert e.options["channel_axis"] == 2
    assert ek.explain.walk(colours / 255, "image").notes[0].startswith("All values lie between -1 and 1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.npy", b"no array", "is no .npy file"),
        ("x.json", b"{", "is not JSON"),
        ("x.csv", b"1,2\n3\n", "row 1 has 2, row 2 has 1"),
        ("x.csv", b"1,2\n3,four\n", "'four'"),
        ("x.csv", b"", "holds no numbers"),
        ("x.csv", b"\xff\xfe\x00", "cannot be read as csv"),
        ("x.json", b"[]", "holds no numbers"),
        ("x.safetensors", b"123", "cannot be read as safetensors"),
        ("x.png", b"no image", "cannot be read as png"),
        ("x.parquet", b"", "an ending that is not known"),
    ],
)
def test_a_wrong_file_is_one_line(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ek.EvenkeelError, match=message):
        read_input(tmp_path / name)


def test_missing_files_object_arrays_and_keys_are_told(tmp_path):
    with pytest.raises(ek.EvenkeelError, match="there is no file"):
        read_input(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object))
    with pytest.raises(ek.EvenkeelError, match="cannot be read as npy"):
        read_input(tmp_path / "x.npy")
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(ek.EvenkeelError, match=r"choose with --key .*: a, b"):
        read_input(tmp_path / "x.safetensors")
    with pytest.raises(ek.EvenkeelError, match="has no tensor 'c'"):
        read_input(tmp_path / "x.safetensors", key="c")


def test_parameters_are_dense():
    with pytest.raises(InvalidInputError, match="weight: expected a dense tensor"):
        walk(torch.ones(4, 6), weight=torch.ones(6).to_sparse())
