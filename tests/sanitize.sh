#!/bin/sh
# Every kernel's small tests, a small main job and a small training of every network under the four compute-sanitizer
# tools, CuPy's memory pool off (a pool hides overruns); then kernels with planted errors, which the same tools must catch.
# Needs a GPU and compute-sanitizer, which comes with the CUDA toolkit. TOOLS= (empty) leaves the planted errors only;
# PARTS="conv kernels jobs training planted" chooses among the parts, which may run side by side in copies of the tree:
# convolutions, other kernels, and so on. Where the GPU tests ran before, the kernels lie ready in the cache.
# Blind spots: racecheck sees shared memory only, and not what cp.async writes; initcheck sees global memory only;
# memcheck does not see overruns within one allocation; constant memory and the copies to it are seen by none.
# Of wgmma and bulk copies, what they read and write in shared memory is seen by none; tests fill it with NaN instead.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export LENET_NO_POOL=1
command -v compute-sanitizer >/dev/null || {
    echo "error: compute-sanitizer is not on PATH: install the CUDA toolkit, or add its bin folder" >&2
    exit 2
}
part() { # whether it is to run
    case " ${PARTS-conv kernels jobs training planted} " in *" $1 "*) true ;; *) false ;; esac
}
check() { # tool, then what Python is to run
    tool=$1
    shift
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$PYTHON" "$@"
}
kernels() { # tool, which
    echo "== $1: kernels ($2)"
    check "$1" -m pytest -q -m gpu tests/kernels/test_gpu_kernels.py -k "(test_small or numpy or nan) and $2" \
        -p no:cacheprovider
}
jobs() { # tool
    tool=$1
    echo "== $tool: main job, fused and not"
    check "$tool" main.py --device cuda --batch 7 --chunk 3 --repeat 1 --warmup 1
    integers=int8 # where a kernel serves it
    "$PYTHON" main.py graph --precision int8 >/dev/null 2>&1 || integers=
    for precision in fp16 fp32x $integers; do # blocks of pairs go round twice, and a last group is one image
        check "$tool" main.py --device cuda --batch 1701 --chunk 1701 --repeat 1 --warmup 1 --precision "$precision"
    done
    for network in fa19 minidnn86 mlp; do # the first two enlarge images in the kernel of convolutions; chunks of 3, 3, 1
        for precision in fp16 fp32x; do
            check "$tool" main.py --network "$network" --device cuda --batch 7 --chunk 3 --repeat 1 --warmup 1 \
                --precision "$precision"
        done
    done
    check "$tool" main.py --device cuda --batch 7 --chunk 3 --repeat 1 --warmup 1 --no-fuse --conv constant --fc naive
}
train() { # tool
    tool=$1
    echo "== $tool: training"
    check "$tool" -m pytest -q -m gpu tests/training/test_gpu_training_kernels.py -p no:cacheprovider
    for network in lenet5 fa19 k7 minidnn86 mlp; do # batches of 8, 8 and 3; 5 images to evaluate
        check "$tool" main.py train --device cuda --network "$network" --images 24 --validation 5 --batch 8 --epochs 1 \
            --data "$folder/images" --labels "$folder/labels" --output "$folder/$network.h5"
    done
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$PYTHON" -c "import pathlib, tests.support.training_for_tests as t; t.write_images(pathlib.Path('$folder'))"
for tool in ${TOOLS-memcheck racecheck initcheck synccheck}; do
    if part conv; then
        kernels "$tool" conv_
    fi
    if part kernels; then
        kernels "$tool" "not conv_"
    fi
    if part jobs; then
        jobs "$tool"
    fi
    if part training; then
        train "$tool"
    fi
done
part planted || exit 0
log=$folder/log
for planted in memcheck:out_of_bounds racecheck:race initcheck:uninitialised; do
    tool=${planted%:*} error=${planted#*:}
    # The tool itself must have counted an error: a program that fails for another reason proves nothing.
    if check "$tool" -m tests.planted "$error" >"$log" 2>&1 || ! grep -Eq 'SUMMARY: [1-9]' "$log"; then
        cat "$log" >&2
        echo "error: $tool missed a planted error: $error" >&2
        exit 1
    fi
    echo "== planted: $tool caught $error: $(grep -Eo '[A-Z]+ SUMMARY: .*' "$log")"
done
echo "all clean, and every planted error caught"
