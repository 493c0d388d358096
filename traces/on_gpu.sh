#!/usr/bin/env bash
# Measure a machine with a GPU (pip install 'pearl-sim[models]' first), eager and as CUDA graphs: the bundled pair, and a
# pair of about 7B and 0.5B parameters with random weights, whose latencies are those of trained ones.  Acceptance of the
# latter is replayed from the bundled pair's trace; then the simulator, given the profile, is held to those runs.
#
#     traces/on_gpu.sh OUT_DIRECTORY [DEVICE]      DEVICE: cuda (default), or cuda:0,cuda:1 for a device each
#
# DRY_RUN=1 goes through the same steps on the CPU with the bundled pair and few tokens, and compiles nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?give an output directory}
device=${2:-cuda}
if [[ ${DRY_RUN:-} ]]; then
  device=cpu dtype=float32 graph=()
  few=(--requests 1 --tokens 16 --gammas 2) grid=(--gammas 1 --contexts 32 --passes 1) runs=(--gammas 1 --requests 1)
  large=(--target bundled/target --draft bundled/draft)
else
  dtype=bfloat16 graph=(--graph)
  few=(--requests 10 --tokens 128 --gammas 2,4,8) grid=(--gammas 4,8 --contexts 64,192 --passes 5)
  runs=(--gammas 4,8 --requests 2)
  large=(--target "$here/shapes/7b.json" --draft "$here/shapes/0.5b.json")
fi
policies=(--policies ar,sd,pearl,pearl-no-pre,pearl-no-post)

for mode in eager graph; do
  options=(--device "$device")
  [[ $mode = eager ]] || options+=("${graph[@]}")
  pearl-sim capture --out "$out/bundled_$mode" "${options[@]}" "${policies[@]}" "${few[@]}"
  options+=(--dtype $dtype "${large[@]}")
  pearl-sim profile --out "$out/7b_$mode.profile" "${options[@]}" "${grid[@]}"
  pearl-sim replay --out "$out/7b_$mode" --trace "$here/bundled_cpu" "${options[@]}" "${policies[@]}" "${runs[@]}"
  pearl-sim compare "$out/7b_$mode" --cost "$out/7b_$mode.profile"
done
