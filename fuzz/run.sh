#!/usr/bin/env bash
# Builds a fuzz target with the coverage counters of LLVM and runs it for some seconds.
#
#   bash fuzz/run.sh TARGET SECONDS
#
# The stable toolchain is enough. cargo-fuzz would need a nightly one, for the address sanitizer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ $# -ne 2 ] || [ ! -f "fuzz/fuzz_targets/$1.rs" ]; then
    echo "usage: bash fuzz/run.sh TARGET SECONDS; targets: $(cd fuzz/fuzz_targets && echo *.rs | sed 's/\.rs//g')" >&2
    exit 2
fi
host=$(rustc -vV | sed -n 's/^host: //p')
flags="-Cpasses=sancov-module"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
    flags="$flags -Cllvm-args=-sanitizer-coverage-$option"
done
# The fuzz targets start with the dependency versions of the main build.
[ -e fuzz/Cargo.lock ] || cp Cargo.lock fuzz/Cargo.lock
target=${CARGO_TARGET_DIR:-$PWD/target}/fuzz
RUSTFLAGS=$flags cargo build --manifest-path fuzz/Cargo.toml --target "$host" --target-dir "$target" --bin "$1"
mkdir -p "$target/corpus/$1"
exec "$target/$host/debug/$1" "$target/corpus/$1" -max_total_time="$2" -artifact_prefix="$target/" -print_final_stats=1
