"""Start the program: LeNet-5 inference on NVIDIA GPUs. ``python main.py --help`` lists its options and commands."""

import sys

try:
    import os
    import time

    STARTED = time.perf_counter()
    from app.base.interrupts import exit_ignoring_signals, install_exit_handlers

    if __name__ == "__main__":  # a worker process imports this file, too
        install_exit_handlers()
    # The CPU route gives each thread its own chunk of images; a threaded matrix library would only get in the way.
    # Must be set before NumPy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

    from app.cli import main
except KeyboardInterrupt:
    print("error: interrupted; nothing half-written was left, run the same command again", file=sys.stderr)
    sys.exit(2)


def run() -> None:
    """Run the program; this is the console command of the installed package."""
    install_exit_handlers()
    exit_ignoring_signals(main())


if __name__ == "__main__":
    exit_ignoring_signals(main())
