"""Put a fork server and the processes forked from it into a process group of their own; importing this does it.

Signals to the group of the parent, such as Ctrl-C in a terminal, then reach the parent alone, which forwards them.
It imports nothing that takes time, so that a fork server leaves the group before it imports PyTorch.
"""

import os

os.setpgrp()
