"""One step of the ladder in other languages, each in one short file with the function ``bind``; ``compare`` judges all.

The step is the convolution on tensor cores as an implicit product, for conv2 of lenet5 in float16 with sums in float32.
A tile is 64 maps x 64 pixels, which are one image, and four warps compute it.
"""
