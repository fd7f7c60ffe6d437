"""The command line, one module a command."""

import gc

# A start allocates much and frees little: collecting garbage on the way costs a tenth of it. The batch mode still
# collects, only less often.
gc.set_threshold(200_000, 20, 20)
