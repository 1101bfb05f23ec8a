"""`python -m lapae`."""

import sys

from lapae.cli import main

sys.exit(main())
