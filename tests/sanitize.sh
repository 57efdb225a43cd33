#!/bin/sh
# Every kernel's tests and a small main job under the four compute-sanitizer tools, CuPy's memory pool off (a pool
# hides overruns). Needs a GPU and compute-sanitizer, which comes with the CUDA toolkit.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export LENET_NO_POOL=1
command -v compute-sanitizer >/dev/null || {
    echo "error: compute-sanitizer is not on PATH: install the CUDA toolkit, or add its bin folder" >&2
    exit 2
}
for tool in ${TOOLS:-memcheck racecheck initcheck synccheck}; do
    check="compute-sanitizer --tool $tool --error-exitcode 9 $PYTHON"
    echo "== $tool: kernels"
    $check -m pytest -q -m gpu tests/test_gpu_kernels.py -k "reference or numpy or nan" -p no:cacheprovider
    echo "== $tool: main job, fused and not"
    $check main.py --device cuda --batch 7 --chunk 3 --repeat 1 --warmup 1
    $check main.py --device cuda --batch 7 --chunk 3 --repeat 1 --warmup 1 --no-fuse --conv direct --fc naive
done
