#!/usr/bin/env bash
# Trains, exports and evaluates all nine models at once on one GPU: train_all.sh OUT [STEPS]
set -euo pipefail
out=$(realpath -m "$1")
steps=${2:-2600}
cd "$(dirname "$0")"
models=(gdn gdn-swa lalte gla softmax-gla gsa sse-n4k1 mamba2 hax-mamba2)
mkdir -p "$out"
python3 data.py --rows $((64 * steps)) --out "$out/data.npz"
for model in "${models[@]}"; do
  python3 train.py "$model" --data "$out/data.npz" --out "$out" > "$out/$model.txt" 2>&1 &
done
wait
cd "$out"
tail -qn 1 "${models[@]/%/.txt}"
python3 "$OLDPWD/evaluate.py" "${models[@]}" --csv pytorch.csv --json pytorch.json
