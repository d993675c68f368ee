"""`python -m jsam.cli` is `jsam`."""

import sys

from jsam.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
