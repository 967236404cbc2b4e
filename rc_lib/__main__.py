"""`python -m rc_lib` is `rc`."""

import sys

from rc_lib.cli import main

if __name__ == "__main__":
    sys.exit(main())
