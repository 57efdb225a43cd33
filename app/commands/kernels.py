"""Define the options of ``main.py kernels``."""

from app.base.frozen import Frozen
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "tools.kernels"
EPILOG = """\
examples:
  python main.py kernels                  the ladder of each operation
  python main.py kernels --resources --arch sm_80
                                          also registers and shared memory
  python main.py kernels --instructions --json kernels.json
"""


class KernelsRequest(Frozen, kw_only=True):
    """Options of ``kernels``: which kernels to list, and whether to compile or disassemble them."""

    resources: bool = option(
        "compile each kernel (needs no GPU) and print its registers, shared memory and spills", False
    )
    instructions: bool = option("count the instructions of each kernel's hottest loop (needs nvdisasm, no GPU)", False)
    arch: str | None = option(
        "GPU architecture that --resources and --instructions compile for (default: sm_90a)", metavar="NAME"
    )
    output: Output = options(what="the table")
