"""``python -m asterism`` is the command ``asterism``."""

import sys

from asterism.cli import main

if __name__ == "__main__":
    sys.exit(main())
