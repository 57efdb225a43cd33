"""Turn a kernel's file that lies outside the tree into a row like the registry's, for ``check`` and ``bench``."""
