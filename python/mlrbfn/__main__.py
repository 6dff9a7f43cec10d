"""python -m mlrbfn"""

import sys

from mlrbfn import main

sys.exit(main())
