"""Work on several processes or machines by Dask's ``distributed`` (extra ``cluster``).

This room hands pieces of work to workers and gives back their answers; it does not know what a piece is. It needs the
extra: other rooms import it inside functions, after ``require_dask``.
"""

from importlib.util import find_spec

from app.base.errors import UserError, install


def require_dask(what: str) -> None:
    """Raise UserError, beginning with ``what``, unless the packages of the extra ``cluster`` are installed."""
    if find_spec("distributed") is None:
        raise UserError(f"{what} needs Dask: {install('cluster')}")
