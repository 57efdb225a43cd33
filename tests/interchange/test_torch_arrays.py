"""Test PyTorch's state dicts from training scripts: batch normalisations, nesting, guessed networks, objects."""

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.errors import UserError
from app.cli import main
from app.interchange.source import ImportOptions, read_source_file
from app.network.network import Network
from app.network.toml import parse_network
from app.network.weights import load_weights
from tests.support.foreign_files import npz_file, state_dict_file
from tests.support.networks_for_tests import layers_toml
from tests.support.shell import user_error

RNG = np.random.default_rng(3)
SHAPES = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5), "fc1": (40, 256), "fc2": (10, 40)}
LAYERS = (
    *("conv2d maps=6 kernel=5", "relu", "maxpool window=2", "conv2d maps=16 kernel=5", "relu", "maxpool window=2"),
    *("flatten", "linear outputs=40", "relu", "linear outputs=10"),
)
TOML = 'name = "m"\ninput = [1, 28, 28]\n' + layers_toml(*LAYERS)
NETWORK = parse_network(TOML, "m.toml")
Arrays = dict[str, np.ndarray]


def random_floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def layers_of(shapes: dict[str, tuple[int, ...]]) -> Arrays:
    found: Arrays = {}
    for name, shape in shapes.items():
        found |= {f"{name}.weight": random_floats(*shape), f"{name}.bias": random_floats(shape[0])}
    return found


def norm_arrays(name: str, maps: int, **other: np.ndarray) -> Arrays:
    values = {"weight": random_floats(maps), "bias": random_floats(maps), "running_mean": random_floats(maps)}
    values |= {"running_var": np.abs(random_floats(maps)), "num_batches_tracked": np.array(3)} | other
    return {f"{name}.{kind}": value for kind, value in values.items()}


def arrays_of_sequential() -> Arrays:
    """Return arrays with the names that nn.Sequential gives them."""
    found: Arrays = {}
    for place, shape in zip((0, 4, 9, 12), SHAPES.values(), strict=True):
        found |= layers_of({f"net.{place}": shape})
        found |= norm_arrays(f"net.{place + 1}", shape[0]) if place < 12 else {}
    return found


def import_arrays(arrays: Arrays, network: Network | None = NETWORK) -> Any:
    Path("m.npz").write_bytes(npz_file(arrays))
    return read_source_file(Path("m.npz"), ImportOptions(network, name="m"))[1]


@pytest.mark.parametrize(("layer", "norm_name"), [("net.0", "net.1"), ("net.4", "net.5"), ("net.9", "net.10")])
def test_batch_normalisations_are_folded(layer: str, norm_name: str) -> None:
    given = arrays_of_sequential()
    source = import_arrays(given)
    ours = {"net.0": "conv1", "net.4": "conv2", "net.9": "fc1"}[layer]
    weights, bias, scale, shift, mean, variance = (
        given[name].astype(np.float64)
        for name in (
            *(f"{layer}.weight", f"{layer}.bias", f"{norm_name}.weight", f"{norm_name}.bias"),
            *(f"{norm_name}.running_mean", f"{norm_name}.running_var"),
        )
    )
    factor = scale / np.sqrt(variance + 1e-5)
    spread = factor.reshape(-1, *(1,) * (weights.ndim - 1))
    np.testing.assert_allclose(source.arrays[ours], weights * spread, rtol=1e-6)
    np.testing.assert_allclose(source.arrays[f"{ours}_bias"], (bias - mean) * factor + shift, rtol=1e-5, atol=1e-6)
    folded = f"batch normalisation '{norm_name}': folded into '{layer}', as the layer before it, with epsilon 1e-05"
    assert folded in source.notes


def test_a_batch_norm_follows_the_layer_of_its_number() -> None:
    """A module may list all convolutions first, then all normalisations."""
    notes = import_arrays(layers_of(SHAPES) | norm_arrays("bn1", 6) | norm_arrays("bn2", 16)).notes
    assert [note.partition(":")[2].split("'")[1] for note in notes] == ["conv1", "conv2"]


def with_norm(**other: np.ndarray) -> Callable[[], Arrays]:
    return lambda: layers_of(SHAPES) | norm_arrays("bn1", 6, **other)


BAD: dict[str, tuple[Callable[[], Arrays], str]] = {
    "negative variance": (with_norm(running_var=-np.ones(6, np.float32)), "'bn1' has a variance that is negative"),
    "nan": (with_norm(running_mean=np.full(6, np.nan, np.float32)), "6 NaN or infinite values"),
    "whole numbers": (with_norm(running_var=np.ones(6, np.int64)), "'bn1.running_var' is stored as int64"),
    "another size": (lambda: layers_of(SHAPES) | norm_arrays("bn1", 7), "'bn1' of 7 maps, and no one layer of so many"),
    "of the images": (lambda: norm_arrays("bn", 1) | layers_of(SHAPES), "'bn' of 1 maps, and no one layer .* to ONNX"),
    "two for one": (
        lambda: {
            **layers_of({"conv1": SHAPES["conv1"]}), **norm_arrays("a", 6), **norm_arrays("b", 6),
            **layers_of({name: SHAPES[name] for name in ("conv2", "fc1", "fc2")}),
        },
        "no one layer of so many outputs before it",
    ),
    "no variance": (
        lambda: {name: one for name, one in with_norm()().items() if not name.endswith("running_var")},
        "has no 'bn1.running_var' beside its mean",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_a_batch_norm_that_fits_no_layer_gives_a_one_line_error(fault: str) -> None:
    make, message = BAD[fault]
    with pytest.raises(UserError, match=message):
        import_arrays(make())


def test_the_only_network_that_fits_is_printed_for_the_user(capsys: pytest.CaptureFixture[str], place: Path) -> None:
    Path("m.npz").write_bytes(npz_file(layers_of(SHAPES) | norm_arrays("bn1", 6)))
    assert main(["import", "m.npz", "--out", "m.h5"]) == 2
    text, error = capsys.readouterr()
    assert "save it as m.toml, correct it and give --network m.toml" in error and not Path("m.h5").exists()
    Path("m.toml").write_text(text)
    assert [layer.kind for layer in parse_network(text, "m").layers] == [layer.kind for layer in NETWORK.layers]
    assert parse_network(text, "m").input_shape == (1, 28, 28)
    assert main(["import", "m.npz", "--network", "m.toml", "--out", "m.h5", "--classes", "a,b,c,d,e,f,g,h,i,j"]) == 0
    assert load_weights(Path("m.h5")).classes == tuple("abcdefghij")


SEVERAL = {"a": (8, 1, 3, 3), "b": (8, 8, 3, 3), "c": (8, 8, 3, 3), "fc": (10, 8 * 49)}  # pools in several places
OTHERS: dict[str, dict[str, tuple[int, ...]]] = {
    "several": SEVERAL,
    "none": SHAPES | {"fc1": (40, 257)},
    "no chain": SHAPES | {"conv2": (16, 7, 5, 5)},
    "not square": SHAPES | {"conv1": (6, 1, 5, 3)},
    "five channels": SHAPES | {"conv1": (6, 5, 5, 5)},
    "products first": {name: SHAPES[name] for name in ("fc1", "fc2", "conv1", "conv2")},
    "no product": {"conv1": SHAPES["conv1"]},
    "one dimension": SHAPES | {"fc2": (10,)},
}


@pytest.mark.parametrize("why", OTHERS)
def test_a_network_must_be_named_if_none_or_several_fit(why: str) -> None:
    message = user_error(lambda: import_arrays(layers_of(OTHERS[why]), None))
    assert message.endswith("has no network in it; name it with --network, as lenet5 or a .toml file")


@pytest.mark.parametrize(
    ("shapes", "image", "padding"),
    [
        ({"a": (9, 784), "b": (5, 9)}, (1, 28, 28), []),
        ({"a": (9, 3072), "b": (5, 9)}, (3, 32, 32), []),
        (SHAPES | {"fc1": (40, 400)}, (1, 28, 28), [2, 0]),
        ({"0": (8, 1, 3, 3), "3": (8, 8, 3, 3), "7": (10, 392)}, (1, 28, 28), [1, 1]),
    ],
)
def test_a_guess_has_this_image_and_padding(shapes: dict[str, Any], image: tuple[int, ...], padding: list[int]) -> None:
    with pytest.raises(UserError) as error:
        import_arrays(layers_of(shapes), None)
    guess = error.value.__cause__.guess  # type: ignore[union-attr]
    assert guess.input_shape == image
    assert [layer.padding for layer in guess.layers if layer.kind == "conv2d"] == padding


CLASSES: dict[str, tuple[str, str]] = {
    "too few": ("a,b", "--classes names 2 classes, and the network has 10"),
    "an empty one": ("a,b,c,d,,f,g,h,i,j", "names 9 classes"),
    "no file": ("names.txt", "names.txt does not exist"),
    "a line": ("a,b,c,d,e,f,g,h,i,\x07", "is not one line of up to 200 characters"),
}


def import_with_classes(names: str) -> int:
    Path("m.npz").write_bytes(npz_file(layers_of(SHAPES)))
    Path("m.toml").write_text(TOML)
    return main(["import", "m.npz", "--network", "m.toml", "--out", "m.h5", "--classes", names])


@pytest.mark.parametrize("fault", CLASSES)
def test_wrong_class_names_give_a_one_line_error(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, message = CLASSES[fault]
    assert import_with_classes(text) == 2
    assert message in capsys.readouterr().err and not Path("m.h5").exists()


def test_class_names_may_be_in_a_file() -> None:
    Path("names.txt").write_text("\ufeff" + "".join(f"class {at}, ä\n" for at in range(10)))
    assert import_with_classes("names.txt") == 0
    assert load_weights(Path("m.h5")).classes == tuple(f"class {at}, ä" for at in range(10))


# --- tests that need PyTorch


def save_with_torch(value: Any) -> None:
    torch = pytest.importorskip("torch")
    stream = io.BytesIO()
    torch.save(value, stream)
    Path("m.pt").write_bytes(stream.getvalue())


@pytest.mark.parametrize("key", ["model_state_dict", "state_dict", "model"])
def test_a_nested_state_dict_is_read(key: str) -> None:
    torch = pytest.importorskip("torch")
    given = layers_of(SHAPES)
    tensors = {name: torch._neg_view(torch.from_numpy(-array)) for name, array in given.items()}
    save_with_torch({"epoch": 3, key: tensors, "optimizer": {"lr": 0.1}})
    _, source = read_source_file(Path("m.pt"), ImportOptions(NETWORK))
    np.testing.assert_array_equal(source.arrays["fc1"], given["fc1.weight"])
    assert f"the arrays are those of its {key}; left out: 'epoch', 'optimizer'" in source.notes


def test_batch_counters_are_left_out() -> None:
    Path("m.pt").write_bytes(state_dict_file(layers_of(SHAPES) | norm_arrays("bn1", 6)))
    assert "bn1" in read_source_file(Path("m.pt"), ImportOptions(NETWORK))[1].notes[0]


def test_errors_for_whole_models_name_their_class() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    save_with_torch(model)
    message = user_error(lambda: read_source_file(Path("m.pt"), ImportOptions(NETWORK)))
    assert "whole pickled model or other objects (torch.nn.modules.container.Sequential); nothing in it" in message
    assert message.endswith("save it with torch.save(model.state_dict(), ...)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.script(model).save("m.pt")
    message = user_error(lambda: read_source_file(Path("m.pt"), ImportOptions(NETWORK)))
    assert "is a TorchScript module, which holds code; save it with torch.save(model.state_dict(), ...)" in message
