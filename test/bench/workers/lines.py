"""lines.py: what idemq-work --lines is measured with: a program that does nothing."""

import json
import sys

for line in sys.stdin:
    print(json.dumps({"id": json.loads(line)["id"]}), flush=True)
