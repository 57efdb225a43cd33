"""All readers, by name."""

from tests.fuzz import hdf5, idx, kernels, tables

TARGETS = {target.name: target for module in (idx, tables, kernels, hdf5) for target in module.TARGETS}
