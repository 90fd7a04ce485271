#!/bin/sh
# Makes the built-in model from nothing: build.sh CORPUS WATERLINE OUT
#
# CORPUS holds corpus.jsonl.xz, gen_synth.py and tok4096/; WATERLINE is the program, which converts. OUT gets the data, both runs
# (checkpoint.pt: the exact float weights) and builtin.gguf. About 20 minutes on one H100 or H200 with 16 cores.
set -eu
[ $# = 3 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
corpus=$(realpath "$1") waterline=$(realpath "$2")
mkdir -p "$3"
out=$(realpath "$3")
cd "$(dirname "$0")"

# data NAME TOKENS...: written while the model is compiled.
data() {
  name=$1 tokens=$2
  shift 2
  python3 prepare.py --corpus "$corpus" --out "$out/$name.data" --tokens "$tokens" "$@" &
}

# run NAME MINUTES...: training and the file of one run.
run() {
  name=$1 minutes=$2
  shift 2
  python3 train.py --data "$out/$name.data" --run "$out/$name" --minutes "$minutes" --finish "$@"
  wait
  python3 export.py "$out/$name/checkpoint.pt" "$corpus/tok4096" "$out/$name.hf"
  "$waterline" convert "$out/$name.hf" -o "$out/$name.gguf" --type Q4_K --tensor-type router=f16
}

data first 345
run first 8.4 --total-minutes 7.8
data builtin 150 --further --seed 20000
run builtin 9 --start "$out/first.gguf"
