"""The worker of the shop.  SIGTERM ends it when its jobs are done."""

import os

from idemq import Worker

from shop import handlers

Worker(os.environ["DSN"], handlers).run()
