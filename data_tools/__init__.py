"""Everything that fetches, verifies, reads or makes data; never imported by app/layers or app/kernels."""
