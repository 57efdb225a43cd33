"""Train ``lenet5`` on Fashion-MNIST and write the weights file that this project ships.

    python -m data_tools.train_lenet5 --output weights/lenet5_fashion.h5

The last 5,000 training images are held out; the epoch with the most correct answers on them is kept.
The test split is read once, afterwards, to record what the finished file promises. Same seed, same
PyTorch, same machine and thread count: same bits. Needs the ``train`` extra (PyTorch); about ten
minutes on two CPU cores.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
from tqdm import tqdm

from app.console import Parser, guarded
from app.errors import UserError
from app.weights import BUNDLED
from data_tools.fashion_mnist import load_split
from data_tools.reference_labels import write_release

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError:  # nothing in this file is of use without it
    print("error: training needs PyTorch; run: pip install -e '.[train]'", file=sys.stderr)
    raise SystemExit(2) from None

VALIDATION_IMAGES = 5_000
RECIPE = (
    "{epochs} epochs, AdamW (weight decay 5e-3), one-cycle rate up to 5e-3, batch 256, label smoothing 0.05, "
    "dropout 0.1 before fc1 and 0.25 before fc2, horizontal flips, shifts of one pixel, seed {seed}; "
    "best epoch by the last 5,000 training images (epoch {epoch}, {accuracy:.4f})"
)


class LeNet5(nn.Module):
    """Network ``lenet5`` of app/networks.py: two bias-free convolutions, two bias-free dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 5, bias=False)
        self.conv2 = nn.Conv2d(32, 64, 5, bias=False)
        self.fc1 = nn.Linear(1024, 128, bias=False)
        self.fc2 = nn.Linear(128, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, 1, 28, 28) float32 in [0, 1] → (B, 10) logits."""
        x = F.avg_pool2d(F.relu(self.conv1(x)), 2)
        x = F.avg_pool2d(F.relu(self.conv2(x)), 2)
        x = F.dropout(x.flatten(1), 0.1, self.training)
        x = F.dropout(F.relu(self.fc1(x)), 0.25, self.training)
        return self.fc2(x)

    def exported(self) -> dict[str, np.ndarray]:
        """Weights in the file's layout: filters H, W, in, out; fc1's rows in H, W, C order."""
        fc1 = self.fc1.weight.detach().numpy().reshape(128, 64, 4, 4)
        return {
            "conv1": np.ascontiguousarray(self.conv1.weight.detach().numpy().transpose(2, 3, 1, 0)),
            "conv2": np.ascontiguousarray(self.conv2.weight.detach().numpy().transpose(2, 3, 1, 0)),
            "fc1": np.ascontiguousarray(fc1.transpose(2, 3, 1, 0).reshape(1024, 128)),
            "fc2": np.ascontiguousarray(self.fc2.weight.detach().numpy().T),
        }


def augmented(padded: np.ndarray, index: np.ndarray, rng: np.random.Generator) -> torch.Tensor:
    """One batch, each image shifted by up to one pixel and flipped half of the time.

    padded: (N, 30, 30) uint8 with a border of zeros; index: (B,) rows to take. Returns (B, 1, 28, 28).
    """
    steps = np.arange(28)
    rows = rng.integers(0, 3, (len(index), 1)) + steps
    columns = rng.integers(0, 3, (len(index), 1)) + steps
    flip = rng.random((len(index), 1)) < 0.5
    columns = np.where(flip, columns[:, ::-1], columns)
    batch = padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]
    return torch.from_numpy(batch.astype(np.float32) / 255.0).unsqueeze(1)


@torch.no_grad()
def count_correct(model: LeNet5, images: np.ndarray, labels: np.ndarray) -> int:
    """Correct answers of the model on (N, 28, 28) uint8 images."""
    model.eval()
    correct = 0
    for start in range(0, len(images), 1000):
        x = torch.from_numpy(images[start : start + 1000].astype(np.float32) / 255.0).unsqueeze(1)
        correct += int((model(x).argmax(1).numpy() == labels[start : start + 1000]).sum())
    return correct


def train(epochs: int, seed: int) -> tuple[dict[str, np.ndarray], str]:
    """Train from scratch; returns the weights of the best validation epoch and the recipe line."""
    torch.manual_seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(2)
    rng = np.random.default_rng(seed)
    images, labels = load_split("train")
    cut = len(images) - VALIDATION_IMAGES
    padded = np.pad(images[:cut], ((0, 0), (1, 1), (1, 1)))
    targets = torch.from_numpy(labels[:cut].astype(np.int64))

    model = LeNet5().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=5e-3)
    batches = cut // 256
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=epochs * batches)
    best, best_correct, best_epoch = model.exported(), -1, 0
    progress = tqdm(range(1, epochs + 1), unit="epoch", disable=not sys.stderr.isatty())
    for epoch in progress:
        model.train()
        order = rng.permutation(cut)
        for step in range(batches):
            index = order[step * 256 : (step + 1) * 256]
            loss = F.cross_entropy(model(augmented(padded, index, rng)), targets[index], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        correct = count_correct(model, images[cut:], labels[cut:])
        if correct > best_correct:
            best = {name: value.copy() for name, value in model.exported().items()}
            best_correct, best_epoch = correct, epoch
        progress.set_postfix(loss=f"{loss.item():.3f}", validation=correct / VALIDATION_IMAGES)
    accuracy = best_correct / VALIDATION_IMAGES
    return best, RECIPE.format(epochs=epochs, seed=seed, epoch=best_epoch, accuracy=accuracy)


def main() -> int:
    """Returns the exit code."""
    return guarded(_run)


def _run() -> int:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=BUNDLED, help="weights file to write (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=45, help="passes over the training images (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default: %(default)s)")
    options = parser.parse_args()
    if options.epochs < 1:
        parser.error("--epochs must be at least 1")
    if not 0 <= options.seed < 2**63:
        parser.error("--seed must be between 0 and 2**63 - 1")
    if options.output.is_dir() or not os.access(options.output.parent, os.W_OK):  # now, not after the training
        raise UserError(f"cannot write {options.output}; choose a file in a directory that you can write to")
    arrays, recipe = train(options.epochs, options.seed)
    write_release(arrays, recipe, options.output)
    print(f"wrote {options.output}: {recipe}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
