"""`python -m jsam.cli` is `jsam`."""

import sys

from jsam.cli import main

sys.exit(main())
