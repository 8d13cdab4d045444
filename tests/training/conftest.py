"""The recipe is a folder of the checkout, not of the package."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
