"""regard beside its peers on a CPU: `sh benchmarks/peers/setup.sh`, then `python -m benchmarks.peers.decode` or `.train`."""
