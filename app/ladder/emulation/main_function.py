"""Generate the C++ main function that emulates a kernel: it declares arrays, launches kernels, and writes outputs."""

from collections.abc import Sequence

from app.base.errors import UserError
from app.kernels.plain_problems import ITEMSIZE, Argument
from app.kernels.problems import Problem
from app.kernels.variant import ConstantCopy, Grid, KernelLaunch, LaunchConfig, Variant


def write_main_function(
    row: Variant, problem: Problem, config: LaunchConfig, images: int, headers: Sequence[str]
) -> str:
    """Return the C++ text of main.cpp. headers: to include, in order. Raises UserError if the row needs cuBLAS."""
    x, *others = problem.arguments()
    outputs = [argument for argument in others if argument.per_image]
    taken = config.packing.takes if config.packing else [argument for argument in others if not argument.per_image]
    arguments = (x, *taken, *outputs, *config.workspace)
    lines = [
        "const host::Program program = host::begin_program(arguments);",
        *(_array_declaration(argument, images, "input") for argument in (x, *taken)),
        *(_array_declaration(argument, images, "array") for argument in (*outputs, *config.workspace)),
        f"int images = {images};",
        "for (int run = 0; run < program.runs; run++) { if (run) host::refill_inputs();",
    ]
    for action in config.actions:
        match action:
            case KernelLaunch():
                names = [argument.name for argument in arguments]
                lines += _launch_lines(action, action.entry or row.entry, names, images)
            case ConstantCopy():
                size = ITEMSIZE[taken[0].dtype]
                source = f"(char *){taken[0].name} + {action.first * size}"
                lines.append(f"host::copy_to_constant({action.symbol}, {source}, {action.count * size});")
            case _:
                raise UserError(f"{row.source} cannot run on the processor: it multiplies in a library")
    lines += [*(f'host::output(program, "{argument.name}");' for argument in outputs), "}"]
    body = "".join(f"    {line}\n" for line in lines)
    included = "".join(f'#include "{name}"\n' for name in headers)
    return f"{included}\nint main(int, char **arguments) {{\n{body}}}\n"


def emulated_grid(launch: KernelLaunch, images: int) -> Grid:
    """Return the launch's grid, as for a GPU of two multiprocessors: a persistent launch has at most two blocks."""
    x, *others = launch.grid(images)
    return (min(x, 2) if launch.persistent else x, *others)  # type: ignore[return-value]


def _array_declaration(argument: Argument, images: int, kind: str) -> str:
    """Return the C++ line that declares an argument's array. kind: ``input`` if its data come from standard input."""
    if argument.optional:
        return f"void *{argument.name} = nullptr;"
    count = argument.fixed + argument.per_image * images
    return f'void *{argument.name} = host::{kind}(program, "{argument.name}", {ITEMSIZE[argument.dtype]}, {count});'


def _launch_lines(action: KernelLaunch, entry: str, names: Sequence[str], images: int) -> list[str]:
    """Return C++ lines that launch the kernel function ``entry``. names: variables that are its arguments."""
    scalars = ", ".join(map(str, action.scalars))
    places = [f"&{name}" for name in (*names, "images")] + [f"scalars + {at}" for at in range(len(action.scalars))]
    cluster = action.cluster(images) if action.cluster else 1
    sizes = (emulated_grid(action, images), action.block or (action.threads, 1, 1))
    grid, block = (", ".join(map(str, size)) for size in sizes)
    shape = f"{{{{{grid}}}, {{{block}}}, {action.shared_bytes}, {cluster}}}"
    return [
        "{",
        *([f"    int scalars[] = {{{scalars}}};"] if scalars else []),
        f"    void *values[] = {{{', '.join(places)}}};",
        f"    host::launch({entry}, {shape}, values, program.low);",
        "}",
    ]
