from __future__ import annotations

import sys

from penstock.bench import main

if __name__ == "__main__":
    sys.exit(main())
