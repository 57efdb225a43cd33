"""What each command does, in one line."""

# Every command and what it does, in the order of ``main.py --help``.
COMMANDS = {
    "networks": "List every network: input, layers, parameters, FLOPs, accuracy.",
    "accuracy": "Count the correct answers of every network, beside its report's.",
    "graph": "Print a network: shapes, FLOPs, bytes, each layer's kernel.",
    "kernels": "List every kernel: the idea, its origin, limits and types.",
    "precompile": "Compile the main job's kernels before its first run.",
    "bench": "Check and time every kernel, layer by layer (GPU).",
    "sweep": "Find the best tile sizes of one kernel for this card (GPU).",
    "profile": "Show where the main job's time goes: kernels, copies, calls (GPU).",
    "train": "Train a network on Fashion-MNIST, on a GPU or slowly on the CPU.",
}
