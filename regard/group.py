"""Imported first by a server of forks, this takes it, and all that is forked from it, out of its parent's group.

What is sent to a whole group of processes, as Ctrl-C in a terminal is, then comes to the parent alone, to be passed on.
"""

import os

os.setpgrp()
