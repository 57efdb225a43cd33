"""``main.py train``: its options."""

from app.training.request import TrainRequest

__all__ = ["EPILOG", "TrainRequest"]

EPILOG = """\
examples:
  python main.py train --network lenet5
      as the shipped weights were made; on the CPU this takes over an hour
  python main.py train --network mlp --epochs 10 --plot plots
      a short training, with its learning curve
  python main.py train --network k7 --images 2000 --epochs 2
      a trial
  python main.py train --resume lenet5_trained.h5.checkpoint
      continue a training that was interrupted
  python main.py train --network lenet5 --workers 2
      two processes share each batch
  python main.py --weights mlp_trained.h5
      classify with the trained weights

The weights of the epoch that is most accurate on the held-out images are kept.
The test images are used once, at the end, to record the accuracy that the
weights promise. The same options on the same card or CPU with as many workers
give identical weights, resumed or not; another --workers gives the same within
rounding. --resume remembers the options of images, --plot and --json.

exit codes: 0 the weights are written; 2 a usage, data or device error, an
interruption, or a training that diverges (its loss is not a number, or over ten
times that of guessing); 3 a bug.
"""
