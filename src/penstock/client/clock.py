"""The clock of the client and its workers: seconds that never go back."""

import time

monotonic = time.monotonic
