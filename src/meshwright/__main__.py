"""``python -m meshwright`` is the ``meshwright`` command."""

import sys

from meshwright.cli.main import main

sys.exit(main())
