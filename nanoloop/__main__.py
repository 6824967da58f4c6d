"""`python -m nanoloop` is `nanoloop`."""

import sys

from nanoloop.cli import main

if __name__ == "__main__":
    sys.exit(main())
