"""Files whose headers lie: one line each, before any memory is taken for what is not there."""

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from PIL import Image

import evenkeel
from evenkeel import EvenkeelError, SourceError
from evenkeel.cli import main
from evenkeel.data import ImageNormalize, StandardScaler, fit, fit_statistics

TABLE = np.arange(600.0).reshape(200, 3)
VALUES = TABLE.tobytes()
# What a fit takes beside the values: threads, buffers, and the libraries' first use of each format.
ROOM = 256 << 20


def npy(shape, descr="<f8", data=VALUES, length=None):
    """The bytes of a .npy file whose header says this."""
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text) if length is None else length) + text + data


def npz(kind, *arrays, size=None):
    """The bytes of a .npz file with these members; the first one's directory entry may say another size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        for name, data in zip("ab", arrays, strict=False):
            archive.writestr(f"{name}.npy", data)
    content = buffer.getvalue()
    if size is not None:
        entry = content.index(b"PK\x01\x02")
        content = content[: entry + 20] + struct.pack("<II", size, size) + content[entry + 28 :]
    return content


def png(width, height, rows=b""):
    """The bytes of a .png file of this size, whatever it holds."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def arrow(rows):
    """The bytes of an Arrow file whose batch says that it has this many rows of 200."""
    sink = pa.BufferOutputStream()
    table = pa.table({"column": np.arange(200.0)})
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write(table.to_batches()[0])
    content = sink.getvalue().to_pybytes()
    return content.replace(struct.pack("<q", 200), struct.pack("<q", rows))


def parquet(rows):
    """The bytes of a Parquet file whose footer says that it has this many rows of 1 000 003."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": np.zeros(1_000_003)}), sink)
    return sink.getvalue().to_pybytes().replace(varint(1_000_003), varint(rows))


def varint(number):
    number, parts = 2 * number, []
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes([*parts, number])


SHORT, LONG = npy((100, 3), data=TABLE[:50].tobytes()), npy((200, 3))

HOSTILE = {
    "rows.npy": (npy((2**40, 3)), r"26388279066624 bytes, but only 4800 follow"),
    "long.npy": (npy((2**62, 2**62)), "but only 4800 follow"),
    "row more.npy": (npy((201, 3)), "but only 4800 follow; was it cut short"),
    "negative.npy": (npy((-1, 3)), "its header says float64 of shape"),
    "negatives.npy": (npy((-20, -30)), "its header says float64 of shape"),
    "objects.npy": (npy((200, 3), "|O"), "holds Python objects"),
    "objects inside.npy": (npy((200, 3), [("a", "|O"), ("b", "<f8")]), "holds Python objects"),
    "item.npy": (npy((200, 3), "|V2147483647"), "but only 4800 follow"),
    "subarray.npy": (npy((3,), [("a", "<f8", (100_000_000,))]), "but only 4800 follow"),
    "header.npy": (npy((200, 3), length=2**32 - 1), "its header says that it has 4294967295 bytes itself"),
    "nested.npy": (npy("(" * 4000), "cannot be read"),
    "text.npy": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 8) + b"'''\n\xff({[" + bytes(99), "cannot be read"),
    "version.npy": (b"\x93NUMPY\x09\x09" + bytes(99), "cannot be read"),
    "short.npy": (b"\x93NUMPY\x01", "cannot be read"),
    "stored.npz": (npz(zipfile.ZIP_STORED, SHORT, LONG), "but only 1200 follow"),
    "stored alone.npz": (npz(zipfile.ZIP_STORED, SHORT), "but only 1200 follow"),
    "directory.npz": (npz(zipfile.ZIP_STORED, SHORT, LONG, size=5000), "but only 12"),
    "deflated.npz": (npz(zipfile.ZIP_DEFLATED, SHORT), "but only 1200 follow"),
    "deflated rows.npz": (npz(zipfile.ZIP_DEFLATED, npy((2**33, 3))), "but only 4800 follow"),
    "deflated header.npz": (npz(zipfile.ZIP_DEFLATED, npy((2, 3), length=2**32 - 1)), "it has 4294967295 bytes itself"),
    "bomb.png": (png(60_000, 60_000), "exceeds limit"),
    "bomb.ppm": (b"P6 60000 60000 255\n", "exceeds limit"),
    "bomb.gif": (b"GIF89a" + struct.pack("<HHBBB", 60_000, 60_000, 0, 0, 0) + b";", "cannot be read"),
    "zero.png": (png(0, 5), "cannot be read"),
    "cut.png": (png(50, 50, bytes(40)), "cannot be read"),
    "other.png": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "no image is recognized; it begins with b'%!PS-",
    ),
    "empty.png": (b"", "empty.png: cannot be read: the file is empty"),
    "chunk.png": (png(50, 50)[:40] + b"\xff" * 60, "cannot be read"),
    "name.arrow": (arrow(200).replace(b"column", b"\xeb\xff\xff\xff\xff\xff"), "cannot be read"),
    "rows.arrow": (arrow(2**40), "cannot be read"),
    "negative.arrow": (arrow(-200), "cannot be read"),
    "stream.arrow": (struct.pack("<ii", -1, 2**31 - 1) + bytes(50), "cannot be read"),
    "footer.parquet": (b"PAR1" + bytes(50) + struct.pack("<I", 2**32 - 1) + b"PAR1", "cannot be read"),
    "rows.parquet": (parquet(1_040_003), "cannot be read"),
}

RUN = """
import json, resource, sys
from evenkeel.data import fit_statistics
from evenkeel import SourceError
for path in sys.argv[3:]:
    fit_statistics(path)  # whole files: the libraries are loaded, and their threads run
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), -1))
found = {}
for path in json.loads(sys.argv[1]):
    try:
        fit_statistics(path, workers=1)
        found[path] = "read"
    except SourceError as error:
        cause = error.__cause__
        found[path] = f"out of memory: {error}" if isinstance(cause, MemoryError) else str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    for name, (content, _) in HOSTILE.items():
        (folder / name).write_bytes(content)
    return folder


def address(folder, name):
    """A path, and of an archive of two arrays the first one's."""
    path = folder / name
    return f"{path}::a" if path.suffix == ".npz" else str(path)


def test_no_header_makes_a_fit_take_memory_for_what_is_not_there(hostile, tmp_path):
    np.save(tmp_path / "x.npy", TABLE)
    np.savez_compressed(tmp_path / "x.npz", TABLE)
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "x.png")
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "x.gif")
    pq.write_table(pa.table({"a": TABLE[:, 0]}), tmp_path / "x.parquet")
    pa.feather.write_feather(pa.table({"a": TABLE[:, 0]}), str(tmp_path / "x.arrow"))
    paths = [address(hostile, name) for name in HOSTILE]
    command = [sys.executable, "-c", RUN, json.dumps(paths), str(ROOM), *map(str, tmp_path.iterdir())]
    environment = os.environ | {"PYTHONPATH": str(Path(evenkeel.__file__).parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert {path: text for path, text in found.items() if text == "read" or text.startswith("out of memory")} == {}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_lie_is_named_in_one_line_in_every_command(name, hostile, tmp_path, capsys):
    path, message = address(hostile, name), HOSTILE[name][1]
    with pytest.raises(SourceError, match=message) as caught:
        fit(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(hostile / name))
    evenkeel.data.save(StandardScaler().fit(TABLE), tmp_path / "s.json")
    for arguments in (
        ["fit", path, "--out", tmp_path / "y.json"],
        ["check", path, "--stats", tmp_path / "s.json"],
        ["apply", path, tmp_path / "y.npy", "--stats", tmp_path / "s.json"],
    ):
        assert main(["data", *map(str, arguments)]) == 2
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert error.count("\n") <= 1
    assert not {"y.json", "y.npy"} & set(os.listdir(tmp_path))


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".png", ".arrow", ".parquet"])
def test_lies_are_skipped_and_listed(suffix, hostile, tmp_path, capsys):
    whole = tmp_path / "data"
    whole.mkdir()
    if suffix in (".npy", ".npz"):
        {".npy": np.save, ".npz": np.savez}[suffix](whole / f"whole{suffix}", TABLE)
    elif suffix == ".png":
        Image.fromarray(np.zeros((10, 20, 3), np.uint8)).save(whole / "whole.png")
    else:
        table = pa.table({"a" if suffix == ".parquet" else "column": TABLE[:, 0]})
        pq.write_table(table, whole / "whole.parquet") if suffix == ".parquet" else pa.feather.write_feather(
            table, str(whole / "whole.arrow")
        )
    bad = [name for name in HOSTILE if name.endswith(suffix) and name not in ("stored.npz", "directory.npz")]
    for name in bad:
        (whole / name).write_bytes(HOSTILE[name][0])
    scaler = fit(whole, on_error="skip")
    assert scaler.statistics_.rows == 200
    skipped = {Path(skip["file"]).name for skip in scaler.contract_.source["skipped"]}
    assert skipped == set(bad)
    with pytest.warns(UserWarning, match=f"skipped {len(bad)} that cannot be read"):
        assert fit_statistics(whole, on_error="skip").rows == 200
    with pytest.raises(SourceError):
        fit(whole)
    out = tmp_path / "s.json"
    assert main(["data", "fit", str(whole), "--out", str(out), "--on-error", "skip", "--quiet"]) == 0
    error = capsys.readouterr().err
    assert f"{len(bad)} files skipped" in error
    assert "Traceback" not in error
    assert main(["data", "fit", str(whole), "--out", str(out), "--quiet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_member_is_not_read_from_its_neighbours_bytes(tmp_path):
    (tmp_path / "x.npz").write_bytes(npz(zipfile.ZIP_STORED, LONG, npy((200, 3), data=(TABLE + 1).tobytes())))
    assert fit_statistics(f"{tmp_path}/x.npz::a").maximum.tolist() == [597, 598, 599]
    assert fit_statistics(f"{tmp_path}/x.npz::b").maximum.tolist() == [598, 599, 600]


def test_encrypted_members_and_other_packings(tmp_path):
    content = bytearray(npz(zipfile.ZIP_DEFLATED, LONG))
    content[content.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(SourceError, match="the array a is encrypted"):
        fit(tmp_path / "x.npz")
    for kind in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED):
        (tmp_path / "x.npz").write_bytes(npz(kind, npy((30_000, 3), data=bytes(720_000))))
        assert fit_statistics(tmp_path / "x.npz").rows == 30_000


@pytest.mark.parametrize("shape", [(200, 3), (3, 200), (1, 1), (200, 1)])
@pytest.mark.parametrize("kind", ["<f8", ">f4", "<i2", "|u1", "|b1"])
def test_arrays_as_numpy_writes_them_are_read_to_the_last_byte(kind, shape, tmp_path):
    x = np.arange(np.prod(shape)).reshape(shape).astype(kind)
    for order in "CF":
        np.save(tmp_path / "x.npy", np.asarray(x, order=order))
        np.savez(tmp_path / "x.npz", np.asarray(x, order=order))
        for name in ("x.npy", "x.npz"):
            statistics = fit_statistics(tmp_path / name)
            assert statistics.minimum.tolist() == x.astype(np.float64).min(0).tolist()
            np.testing.assert_allclose(statistics.mean, x.mean(0, dtype=np.float64), rtol=1e-14)


@pytest.mark.parametrize(
    "error", [struct.error("unpack"), MemoryError(), SyntaxError("bad"), TypeError("a\nb"), KeyError(1)]
)
def test_whatever_pillow_raises_is_one_line(error, tmp_path, monkeypatch):
    Image.new("RGB", (3, 3)).save(tmp_path / "a.png")
    Image.new("RGB", (3, 3)).save(tmp_path / "b.png")

    opened = Image.open

    def open_one(path, **options):
        if path.name == "b.png":
            raise error
        return opened(path, **options)

    monkeypatch.setattr(Image, "open", open_one)
    for act in (fit_statistics, lambda path: ImageNormalize.fit(path, definition="pooled")):
        with pytest.raises(EvenkeelError, match=r"b\.png: cannot be read: \S+") as caught:
            act(tmp_path)
        assert "\n" not in str(caught.value)
    assert len(fit(tmp_path, on_error="skip").contract_.source["skipped"]) == 1
