"""Decoding on a CPU beside the peers: 32 sentences, 25 tokens in and exactly 25 out, random weights, in turns.

    sh benchmarks/peers/setup.sh
    python -m benchmarks.peers.decode

`regard reference` is regard with REGARD_FAST=0. A shortlist has 1,700 of 8,000 words, or 1,350 of 32,000, as many as on
real text (see `ModelSizes` in workloads.py); finding it is part of each run. The limit is that of fp32: the operations
of regard's matrix products with all words, at the rate of a large one, measured in the same run. int8 and shortlists
may exceed it.
"""

from __future__ import annotations

from benchmarks.peers.comparison import Contestant, run_comparison

CONTESTANTS = {
    "regard": Contestant("regard", "torch"),
    "regard, shortlist": Contestant("regard", "torch-shortlist"),
    "regard reference": Contestant("regard", "torch", settings={"REGARD_FAST": "0"}),
    "regard int8": Contestant("regard", "torch-int8"),
    "regard int8, shortlist": Contestant("regard", "torch-int8-shortlist"),
    "regard onnx fp32": Contestant("regard", "onnx-fp32"),
    "regard onnx fp32, shortlist": Contestant("regard", "onnx-fp32-shortlist"),
    "regard onnx int8": Contestant("regard", "onnx-int8"),
    "regard onnx int8, shortlist": Contestant("regard", "onnx-int8-shortlist"),
    "regard ctranslate2 fp32": Contestant("regard", "ctranslate2-fp32"),
    "regard ctranslate2 int8": Contestant("regard", "ctranslate2-int8"),
    "regard ctranslate2 int8, shortlist": Contestant("regard", "ctranslate2-int8-shortlist"),
    "OpenNMT-py": Contestant("opennmt", environment="opennmt"),
    "Eole": Contestant("eole", environment="eole"),
    "JoeyNMT": Contestant("joeynmt", environment="joeynmt"),
    "transformers": Contestant("transformers", environment="transformers"),
    "CTranslate2 fp32": Contestant("ctranslate2", "fp32"),
    "CTranslate2 int8": Contestant("ctranslate2", "int8"),
}
WORKS = ("decode-rnn-4", "decode-rnn-1", "decode-transformer-4", "decode-transformer-1", "decode-base-4")

if __name__ == "__main__":
    run_comparison(CONTESTANTS, WORKS, __doc__)
