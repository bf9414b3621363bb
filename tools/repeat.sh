#!/usr/bin/env bash
# Run `make test` N times and report each: tools/repeat.sh N [COMMAND...]
#   BUSY=2 tools/repeat.sh 3     the same beside two busy loops
#   tools/repeat.sh 5 taskset -c 0 make unit
set -uo pipefail
cd "$(dirname "$0")/.."
count=$1; shift
[ $# -gt 0 ] || set -- make test
loops=()
trap '[ ${#loops[@]} -eq 0 ] || kill "${loops[@]}"' EXIT
for _ in $(seq "${BUSY:-0}"); do (while :; do :; done) & loops+=($!); done
mkdir -p build/repeat
failed=0
for run in $(seq "$count"); do
  begin=$SECONDS log=build/repeat/$run.txt outcome=passed
  env -u CI PYTHONHASHSEED="$run" "$@" >"$log" 2>&1 || { outcome=FAILED; failed=$((failed + 1)); }
  echo "run $run: $outcome in $((SECONDS - begin)) s; $(grep -aE '[0-9]+ passed' "$log" | paste -sd ' ')"
  [ "$outcome" = passed ] || grep -aE '^(FAILED|ERROR)' "$log"
done
echo "$failed of $count failed"
[ "$failed" -eq 0 ]
