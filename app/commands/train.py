"""Define the help of ``main.py train``; app/training/request.py defines its options."""

from app.training.request import TrainRequest

__all__ = ["EPILOG", "TrainRequest"]

BODY = "training.command"
EPILOG = """\
examples:
  python main.py train --network lenet5
      train the shipped weights again; on the CPU this takes over an hour
  python main.py train --network mlp --epochs 10 --plot plots
      a short training, with its learning curve
  python main.py train --network k7 --images 2000 --epochs 2
      a quick trial
  python main.py train --resume lenet5_trained.h5.checkpoint
      continue a training that was interrupted
  python main.py train --network lenet5 --workers 2
      two processes share each batch
  python main.py --weights mlp_trained.h5
      classify with the trained weights

train keeps the weights of the epoch that is most accurate on the validation
images. It uses the test images once, at the end, to measure the accuracy that
it stores with the weights. The same options on the same card or CPU give
identical weights, resumed or not; another --workers changes only the rounding.
--resume uses the images, --plot and --json of the interrupted training.

exit codes: 0 the weights are written; 2 a usage, data or device error, an
interruption, or a training that diverges (its loss is not a number, or over ten
times that of guessing); 3 a bug.
"""
