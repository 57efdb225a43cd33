// Any two convolutions of any sizes as in step 6, the second with 2:4 sparse filters: half the tensor-core time.
//
// What changed since step 6: the rows of the maps' planes alternate, so that a column of taps is a run of sparse
// products (SPARSE in warpgroup_convolution.cuh).
// From: none of the systems.
// Data: as in step 6; filters2: kept weights, and behind those of a stage their metadata (see sparse_pair.py).
// Launch: as in step 6.
// Bound by: shared memory, which gives 128 bytes a clock, and the first convolution.
#define conv_pair_wgmma_any conv_pair_wgmma_any_sparse
#include "conv_pair_06_wgmma_any.cu"
