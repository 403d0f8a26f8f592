#!/bin/sh
# A virtual environment for each peer, in build/peers/NAME: `sh benchmarks/peers/setup.sh [NAME …]`.
#
# The peers ask for versions of PyTorch that exclude each other. All get regard's own, so that what differs is their
# code; hence --no-deps, and by hand what their models, searches and losses import. One that fails does not stop the others.
set -u
cd "$(dirname "$0")/../.." || exit 1
PYTHON=${PYTHON:-python3}
TORCH=torch==2.13.0

needs() { # what a peer imports beside PyTorch
  case $1 in
  opennmt) echo OpenNMT-py==3.5.1 configargparse pyyaml six sacrebleu 'pyonmttok>=1.37' 'ctranslate2>=4,<5' tensorboard rapidfuzz pyahocorasick spacy fasttext-wheel ;;
  eole) echo eole==0.6.4 configargparse pyyaml six sacrebleu 'pyonmttok>=1.38.1' 'ctranslate2>=4,<5' tensorboard rapidfuzz \
    pyahocorasick safetensors huggingface_hub pydantic rich numpy sentencepiece subword-nmt tokenizers torch-optimi pandas ;;
  joeynmt) echo joeynmt==2.3.0 pyyaml numpy sacrebleu sacremoses sentencepiece subword-nmt matplotlib seaborn tensorboard \
    packaging pandas datasets importlib-metadata 'setuptools<81' ;;
  sockeye) echo sockeye==3.1.34 pyyaml 'numpy<2' sacrebleu ;;
  scikit-learn) echo scikit-learn==1.9.1 ;;
  transformers) echo transformers==5.22.2 ;;
  *) return 1 ;;
  esac
}

for name in ${*:-opennmt eole joeynmt sockeye scikit-learn transformers}; do
  folder=build/peers/$name
  if ! list=$(needs "$name"); then
    echo "$name: no such peer (opennmt, eole, joeynmt, sockeye, scikit-learn, transformers)" >&2
    exit 2
  fi
  # The first word is the peer itself; what transformers asks for goes well with any PyTorch.
  # shellcheck disable=SC2086
  set -- $list
  peer=$1
  shift
  "$PYTHON" -m venv "$folder" || exit 1
  pip="$folder/bin/python -m pip install --quiet --disable-pip-version-check"
  $pip "$TORCH" && echo "$TORCH" >"$folder/constraints.txt" &&
    if [ $# -gt 0 ]; then $pip -c "$folder/constraints.txt" "$@" && $pip --no-deps "$peer"; else $pip -c "$folder/constraints.txt" "$peer"; fi &&
    touch "$folder/ready" && echo "$name: ready" || echo "$name: could not be set up" >&2
done
