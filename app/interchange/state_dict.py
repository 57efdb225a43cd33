"""Read PyTorch's state dicts. PyTorch unpickles them in its weights-only mode, which executes no code in them."""

import io
import re
import warnings
from pickle import UnpicklingError
from typing import Any

import numpy as np

from app.base.errors import pip_install_command
from app.files.checks import BadValueError, format_for_error
from app.interchange.named_arrays import MAX_ARRAYS, NamedArrays, match_to_network
from app.interchange.npz import open_zip
from app.interchange.source import MAX_FILE_BYTES, ImportOptions, Source
from app.interchange.torch_arrays import COUNTER

REMEDY = "save it with torch.save(model.state_dict(), ...)"
NESTED = ("model_state_dict", "state_dict", "model")  # keys of the state dict in training scripts' checkpoints
SAFE = (2, 6)  # older versions can run code in spite of weights_only (CVE-2025-32434)


def read_source(content: bytes, options: ImportOptions) -> Source:
    """Return the network in ``options`` and a state dict's arrays for it. Raises BadValueError if they do not fit."""
    return match_to_network(read_state_dict(content), options)


def read_state_dict(content: bytes) -> NamedArrays:
    """Return the tensors, except batch counters, of a file that ``torch.save(model.state_dict(), ...)`` wrote.

    Raises BadValueError without PyTorch, for damage, and for anything but dense float tensors: it could run code.
    """
    if content.startswith(b"PK"):
        with open_zip(content, MAX_FILE_BYTES) as archive:  # PyTorch would unpack members of any size
            if any(name.endswith("/constants.pkl") for name in archive.namelist()):
                raise BadValueError(f"is a TorchScript module, which holds code; {REMEDY}")
    try:
        import torch
    except ImportError:
        raise BadValueError(f"is a PyTorch file, which PyTorch reads: {pip_install_command('torch')}") from None
    if tuple(map(int, torch.__version__.split(".")[:2])) < SAFE:
        raise BadValueError(f"is not safe to read with PyTorch {torch.__version__}: {pip_install_command('torch')}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the warning about an old form of storages
            found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        holds = (
            f"a whole pickled model or other objects ({named[1][:60]})" if named else "more than tensors, or is damaged"
        )
        raise BadValueError(f"holds {holds}; nothing in it was run: {REMEDY}") from None
    except Exception as error:  # a damaged file fails in many ways
        raise BadValueError(f"cannot be read by PyTorch: {format_for_error(str(error))}; {REMEDY}") from None
    if not isinstance(found, dict) or not found or len(found) > MAX_ARRAYS:
        raise BadValueError(f"holds no state dict but {format_for_error(type(found).__name__)}; {REMEDY}")
    notes: tuple[str, ...] = ()
    if nested := next((key for key in NESTED if isinstance(found.get(key), dict)), None):
        others = ", ".join(format_for_error(key) for key in list(found)[:8] if key != nested) or "nothing else"
        notes = (f"the arrays are those of its {nested}; left out: {others}",)
        found = found[nested]
    arrays = {name: _to_numpy(name, one, torch) for name, one in found.items() if not str(name).endswith(COUNTER)}
    return NamedArrays(arrays, notes=notes)


def _to_numpy(name: Any, tensor: Any, torch: Any) -> np.ndarray:
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        kind = format_for_error(type(tensor).__name__)
        raise BadValueError(f"{format_for_error(name)} is no tensor but {kind}; save only model.state_dict()")
    if tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        kind = str(tensor.dtype).removeprefix("torch.")
        raise BadValueError(f"{format_for_error(name)} is stored as {kind}; store it as float32")
    if tensor.layout != torch.strided:
        raise BadValueError(f"{format_for_error(name)} is stored sparse; store it dense")
    if tensor.is_meta:
        raise BadValueError(f"{format_for_error(name)} is stored without its numbers; give it some before you save it")
    array: np.ndarray = tensor.detach().resolve_neg().contiguous().numpy()
    return array
