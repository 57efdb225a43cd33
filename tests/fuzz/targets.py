"""All readers, by name."""

from tests.fuzz import hdf5, idx, tables

TARGETS = {target.name: target for module in (idx, tables, hdf5) for target in module.TARGETS}
