"""`python -m capsbench` is the command `capsbench`."""

import sys

from capsbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
