"""regard beside its peers on a CPU; `setup.sh` sets them up, `decode` and `train` measure."""
