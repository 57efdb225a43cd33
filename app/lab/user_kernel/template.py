"""Write the start of a user's kernel: a copy of a kernel of the ladder, below ``//@`` lines and comments on them."""

import re
from pathlib import Path

from app.files.writing import replace_atomically
from app.kernels.variant import Variant
from app.lab.user_kernel.header import FEATURES, TYPE_BYTES
from app.lab.user_kernel.row import find_named_variant
from app.lab.user_kernel.source import check_file_name

# Entry point → the header's lines for its launch, which the user can change. For others, the header names the row.
LAUNCHES = {
    "conv_direct": """\
//@ block: 256
//@ grid: ceil_div(images * OH * OW, 256), M
//@ arguments: C, H, W, M, K, S
//@ types: fp32, fp64, fp16
""",
    "gemm_naive": """\
//@ block: 256
//@ grid: ceil_div(images * N, 256)
//@ arguments: DEPTH, N
//@ types: fp32, fp64, fp16
""",
    "pool_direct": """\
//@ block: 256
//@ grid: ceil_div(images * CHANNELS * PH * PW, 256)
//@ types: fp32, fp64, fp16
""",
}
SIZES_IN_WORDS = {
    "conv": "C x H x W pixels of an image, M x OH x OW of its output, K (side of a filter), S (stride), PADDING",
    "gemm": "DEPTH inputs and N outputs of an image",
    "pool": "CHANNELS x H x W pixels of an image, PH x PW windows of a channel, WINDOW (a side), STRIDE, PADDING",
}
HEAD = """\
// A kernel to change: a copy of {operation} {name}.
//
//   python main.py check {file}        is it right? On the card, or by g++ without one.
//   python main.py bench {file}        where does it stand among all steps? On a card.
//   python main.py check {file} --counts   where does it stand by its loads? Without a card.
//
// Lines that begin with //@ say how it is compiled and launched:
//
{lines}
//
{more}// Names of sizes: {sizes};
// also images in grid, and {types}.
// In the code, sizes are constants{but}; those in arguments are its
// parameters. INPUT, WEIGHT, REAL and OUTPUT are the types of x, w, the sums and y; docs/your-kernel.md says more.
"""
# For kernels in LAUNCHES.
MORE = """\
// More lines that may stand here:
//   //@ TILE = 16              a constant of the compilation, for lines below and for the code
//   //@ shared: 4 * TILE ** 2  bytes of dynamic shared memory: extern __shared__ float memory[];
//   //@ block: 16, 16          threads of a block along x and y
//   //@ without: {features[0]:<14}what it does not do: {all_features}
"""


def write_template(path: Path, like: str) -> str:
    """Write a new file with a copy of the kernel ``like``; return the message for the user. Raises UserError."""
    check_file_name(path)
    row = find_named_variant(like)
    with replace_atomically(path, overwrite=False) as temporary:
        temporary.write_text(kernel_template(row, path.name), encoding="utf-8")
    return f"wrote {path}, a copy of {row.operation} {row.name}: change it, then run\npython main.py check {path}"


def kernel_template(row: Variant, name: str) -> str:
    """Return the text for a new file called ``name``: the row's kernel below an explained header."""
    text = row.path.read_text(encoding="utf-8")
    launch, features = LAUNCHES.get(row.entry), FEATURES[row.operation]
    if launch is None:
        lines = f"//@ as: {row.operation}:{row.name}\n"
        constant = next(iter(row.tunables), "TILE")
        lines += f"//   (its launch and constants; a line '//@ {constant} = …' changes a constant)"
    else:
        lines = f"//@ kernel: {row.operation}\n{launch}".rstrip()
        function = f"my_{row.operation}"
        text = re.sub(rf"\b{row.entry}\b", function, text)
        # The parameters' second line stays below the first.
        text = re.sub(rf"({function}\(.*\n) {{{len(row.entry) - len(function)}}}", r"\1", text)
    head = HEAD.format(
        operation=row.operation,
        name=row.name,
        file=name,
        lines=lines,
        more="" if launch is None else MORE.format(features=features, all_features=", ".join(features)),
        sizes=SIZES_IN_WORDS[row.operation],
        types=", ".join(TYPE_BYTES),
        but=", but for OH and OW, which it computes" if row.operation == "conv" else "",
    )
    return f"{head}//\n{text}"
