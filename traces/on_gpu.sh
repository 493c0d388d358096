#!/usr/bin/env bash
# Record traces on a machine with a GPU (pip install 'pearl-sim[models]' first): the bundled pair, eager and as CUDA
# graphs, and a pair of about 7B and 0.5B parameters with random weights, whose latencies are those of trained ones.
#
#     traces/on_gpu.sh OUT_DIRECTORY [DEVICE]      DEVICE: cuda (default), or cuda:0,cuda:1 for a device each
#
# DRY_RUN=1 goes through the same steps on the CPU with the bundled pair and few tokens, and compiles nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?give an output directory}
device=${2:-cuda}
if [[ ${DRY_RUN:-} ]]; then
  device=cpu few=(--requests 1 --tokens 16 --gammas 2) few_large=("${few[@]}") graph=() dtype=float32
  large=(--target bundled/target --draft bundled/draft)
else
  few=(--requests 10 --tokens 128 --gammas 2,4,8) few_large=(--requests 1 --tokens 48 --gammas 4,8) graph=(--graph) dtype=bfloat16
  large=(--target "$here/shapes/7b.json" --draft "$here/shapes/0.5b.json")
fi
policies=(--policies ar,sd,pearl,pearl-no-pre,pearl-no-post)

pearl-sim capture --out "$out/bundled_gpu_eager" --device "$device" "${policies[@]}" "${few[@]}"
pearl-sim capture --out "$out/bundled_gpu_graph" --device "$device" "${policies[@]}" "${few[@]}" "${graph[@]}"
pearl-sim capture --out "$out/random_7b_eager" --device "$device" --dtype $dtype "${large[@]}" "${policies[@]}" "${few_large[@]}"
pearl-sim capture --out "$out/random_7b_graph" --device "$device" --dtype $dtype "${large[@]}" "${policies[@]}" "${few_large[@]}" "${graph[@]}"
