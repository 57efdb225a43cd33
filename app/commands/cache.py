"""Define the options of ``main.py cache``."""

from app.base.frozen import Frozen
from app.terminal.options import option, options
from app.terminal.output import Output

BODY = "tools.cache"
EPILOG = """\
examples:
  python main.py cache           what lies in the cache
  python main.py cache --clear   remove compiled kernels and fetched data

The cache is $LENET_CACHE_DIR, else $XDG_CACHE_HOME/lenet5-inference, else
~/.cache/lenet5-inference. What --clear removes is made again when needed:
kernels are compiled, data are fetched. Tuning tables and peer settings
stay, since sweep and bench measured them, and so does the progress of `learn`
and every file that this program did not write.
"""


class CacheRequest(Frozen, kw_only=True):
    """Options of ``cache``: list or clear the cached files."""

    clear: bool = option("remove compiled kernels and fetched data", False)
    output: Output = options(what="the list")
