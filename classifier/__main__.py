"""`python -m classifier` is the command `classifier`."""

import sys

from classifier.cli import main

sys.exit(main())
