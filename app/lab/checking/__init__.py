"""Run kernels on small problems whose results are known, on the card or, for ``app/ladder/check``, anywhere."""
