"""`python -m jsam.cli` is `jsam`."""

import sys

from jsam.cli import main

if __name__ == "__main__":
    sys.exit(main())
