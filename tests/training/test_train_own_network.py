"""Train a network from a TOML file: recipe, biases, pixel scale, and resuming without the file."""

from pathlib import Path

from app.cli import main
from app.network.weights import load_weights
from tests.support.training_for_tests import OWN, Refused, Train
from tests.training.test_train_command import interrupted_after

OWN_NETWORK = """
input = [1, 28, 28]
pixel_scale = 1
[[layers]]
type = "conv2d"
maps = 4
kernel = 3
padding = 1
bias = false
[[layers]]
type = "maxpool"
window = 2
[[layers]]
type = "flatten"
[[layers]]
type = "tanh"
[[layers]]
type = "linear"
outputs = 3
bias = true
"""


def test_a_network_from_a_file(train: Train, place: Path, refused: Refused) -> None:
    """With a general recipe and its own biases and pixel scale; running and going on need no file and take no other."""
    (place / "own.toml").write_text(OWN_NETWORK)
    asked = ["--network", "own.toml", *OWN, "--epochs", "4"]
    code, out, err = train(*asked, "--out", "whole.h5")
    assert (code, err) == (0, "") and "training own on the CPU" in out and "epochs 4" in out
    with interrupted_after(2):
        assert train(*asked)[0] == 2
    (place / "other.toml").write_text(OWN_NETWORK.replace("maps = 4", "maps = 5"))
    wrong = "--network other.toml differs from own_trained.h5.checkpoint, which was started with --network own: leave"
    refused("--resume own_trained.h5.checkpoint --network other.toml", wrong)
    with interrupted_after(3):
        assert train("--resume", "own_trained.h5.checkpoint", "--network", "own.toml")[0] == 2
    (place / "own.toml").unlink()
    assert train("--resume", "own_trained.h5.checkpoint")[0] == 0
    assert (place / "own_trained.h5").read_bytes() == (place / "whole.h5").read_bytes()
    weights = load_weights(place / "own_trained.h5")
    assert weights.network == "own" and weights.input_scale == 1.0
    assert weights.arrays.keys() == {"conv1", "fc1", "fc1_bias"} and weights.own_network().pixel_scale == 1.0
    own = ["--data", "images", "--labels", "labels", "--device", "cpu"]
    assert main(["--weights", "own_trained.h5", *own]) == 0
