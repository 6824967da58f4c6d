"""Run the command line for `python -m nanoloop`, as the `nanoloop` command does."""

import sys

from nanoloop.cli import main

if __name__ == "__main__":
    sys.exit(main())
