#!/usr/bin/env bash
# Trains, exports and evaluates all nine models at once on one GPU: train_all.sh OUT
set -euo pipefail
out=$(realpath -m "$1")
cd "$(dirname "$0")"
export CUDA_DEVICE_MAX_CONNECTIONS=32 # queues on the device, so that the models' streams do not wait for each other
python3 train.py --out "$out"
code=$PWD
cd "$out"
python3 "$code/evaluate.py" gdn gdn-swa lalte gla softmax-gla gsa sse-n4k1 mamba2 hax-mamba2 --csv pytorch.csv --json pytorch.json
