"""`python -m everstep`: the command line."""

import sys

from everstep.cli.start import main

if __name__ == "__main__":
    sys.exit(main())
