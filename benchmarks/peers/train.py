"""Training on a CPU beside the peers: forward, backward and Adam on 2,048 target tokens, random weights, in turns.

    sh benchmarks/peers/setup.sh
    python -m benchmarks.peers.train

Each by its own loss and optimizer; Transformers with dropout and label smoothing of 0.1, the recurrent model with
neither. `regard reference` is regard with REGARD_FAST=0. The limit is the time of regard's matrix products at the rate
of a large one, measured in the same run.
"""

from __future__ import annotations

from benchmarks.peers.comparison import Contestant, run_comparison

CONTESTANTS = {
    "regard": Contestant("regard", "torch"),
    "regard mixed": Contestant("regard", "torch-mixed"),
    "regard reference": Contestant("regard", "torch", settings={"REGARD_FAST": "0"}),
    "OpenNMT-py": Contestant("opennmt", environment="opennmt"),
    "Eole": Contestant("eole", environment="eole"),
    "JoeyNMT": Contestant("joeynmt", environment="joeynmt"),
    "transformers": Contestant("transformers", environment="transformers"),
    "Sockeye": Contestant("sockeye", environment="sockeye"),
}
WORKS = ("train-rnn", "train-transformer")

if __name__ == "__main__":
    run_comparison(CONTESTANTS, WORKS, __doc__)
