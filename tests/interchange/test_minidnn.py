"""Test the import of mini-dnn's flat files: the network that results, and one-line errors for wrong files."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import main
from app.interchange.chain import with_mini_dnn_preprocessing
from app.layers import MaxPool
from app.network.definitions import MINIDNN86, MLP
from app.network.toml import network_toml
from app.network.weights import load_weights
from tests.support.foreign_files import channels_first, flat_dump
from tests.support.shell import Refuses

LAYERS = frozenset({"conv1", "conv2", "fc1", "fc2"})
ARRAYS = channels_first(MINIDNN86, biases=LAYERS)
GOOD = flat_dump(MINIDNN86, ARRAYS)
COMMAND = ["import", "old.bin", "--network", "minidnn86", "--out", "new.h5"]


@pytest.fixture
def place(place: Path) -> Path:
    (place / "old.bin").write_bytes(GOOD)
    return place


def with_nan(content: bytes) -> bytes:
    return content[:8] + struct.pack("<f", float("nan")) + content[12:]


BAD: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda good: b"", "ends within the number of layers"),
    "truncated": (lambda good: good[:-1], "ends within the number of floats of layer softmax: 3 of 4 bytes"),
    "cut short": (lambda good: good[:1000], "ends within the 3,152 floats of layer conv2"),
    "longer": (lambda good: good + b"\0\0", "2 bytes after its last layer"),
    "layers": (lambda good: struct.pack("<i", 2**31 - 1) + good[4:], "declares 2,147,483,647 layers"),
    "negative": (lambda good: struct.pack("<i", -1) + good[4:], "declares -1 layers"),
    "floats": (lambda good: good[:4] + struct.pack("<i", 2**31 - 1) + good[8:], "conv1 has 2,147,483,647 floats"),
    "negative floats": (lambda good: good[:4] + struct.pack("<i", -4) + good[8:], "conv1 has -4 floats"),
    "another count": (lambda good: good[:4] + struct.pack("<i", 199) + good[8:], "conv1 has 199 floats"),
    "nan": (with_nan, "conv1 contains 1 NaN"),
    "big-endian": (lambda good: flat_dump(MINIDNN86, ARRAYS, ">"), "its numbers are big-endian"),
    "another network": (lambda good: struct.pack("<i", 0), "declares 0 layers, network minidnn86 has 10"),
    "a picture": (lambda good: b"\x89PNG\r\n\x1a\n" + good, "is a PNG picture; import reads mini-dnn flat dump"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_dump_gives_a_one_line_error(fault: str, place: Path, refuses: Refuses) -> None:
    change, wrong = BAD[fault]
    (place / "old.bin").write_bytes(change(GOOD))
    refuses(COMMAND, wrong)
    assert not (place / "new.h5").exists()


def test_big_endian_floats_after_little_endian_counts_are_refused(place: Path, refuses: Refuses) -> None:
    swapped = {name: array.byteswap() for name, array in ARRAYS.items()}
    (place / "old.bin").write_bytes(flat_dump(MINIDNN86, swapped))
    refuses(COMMAND, "has big-endian floats")
    assert not (place / "new.h5").exists()


def test_missing_and_useless_options_are_refused(place: Path, refuses: Refuses) -> None:
    refuses("import old.bin --out new.h5", "a flat dump has no names; name its network with --network")
    refuses([*COMMAND, "--size", "86"], "leave --size and --symbol out")
    refuses("import old.bin --network vgg --out new.h5", "unknown network 'vgg'")
    refuses("import missing.bin --network minidnn86 --out new.h5", "missing.bin does not exist")


def test_the_weights_file_is_replaced_only_with_overwrite(place: Path, refuses: Refuses) -> None:
    (place / "new.h5").write_text("mine")
    refuses(COMMAND, "new.h5 exists: name another --out, or replace it with --overwrite")
    assert (place / "new.h5").read_text() == "mine"
    assert main([*COMMAND, "--overwrite"]) == 0
    refuses([*COMMAND[:-1], "old.bin", "--overwrite"], "--out old.bin is the same file as FILE old.bin")


def test_a_network_of_the_course_is_imported(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Incomplete windows count (34 → 9); rule and pixel scale become those of ``--rule course``."""
    layers = tuple(MaxPool("pool2", 4, ceil=True) if one.name == "pool2" else one for one in MINIDNN86.layers)
    network = replace(MINIDNN86, layers=layers)
    arrays = channels_first(network, biases=LAYERS)
    assert arrays["fc1"].shape == (32, 1296)
    (place / "net.toml").write_text(network_toml(network))
    (place / "old.bin").write_bytes(flat_dump(network, arrays))
    assert main(["import", "old.bin", "--network", "net.toml", "--out", "new.h5"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "mini-dnn flat dump" in out and "(32, 1296) over C,H,W (1296, 32) over H,W,C" in out
    assert "rule course; pixels of 0 to 255 times 1 " in out
    found = load_weights(Path("new.h5"))
    assert found.stored_network() == with_mini_dnn_preprocessing(network) and found.input_scale == 1
    assert found.network == "minidnn86" and found.stored_network().digest != network.digest


def test_options_set_another_rule_and_scale(place: Path, refuses: Refuses) -> None:
    assert main([*COMMAND, "--rule", "edge", "--pixel-scale", "1/255"]) == 0
    found = load_weights(Path("new.h5"))
    assert found.stored_network() == MINIDNN86 and found.input_scale == MINIDNN86.pixel_scale
    refuses([*COMMAND, "--overwrite", "--pixel-scale", "0"], "--pixel-scale '0' is not a number from")
    refuses([*COMMAND, "--overwrite", "--pixel-scale", "1/0"], "--pixel-scale '1/0' is not a number from")
    (place / "mlp.bin").write_bytes(flat_dump(MLP, channels_first(MLP, biases=frozenset())))
    refuses("import mlp.bin --network mlp --rule edge --out mlp.h5", "network mlp enlarges no images: leave --rule")
