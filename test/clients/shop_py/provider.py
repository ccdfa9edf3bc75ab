"""Represents the client libraries of a payment provider and of a mail provider."""

import json
import os
import urllib.error
import urllib.request
from typing import Dict, Optional

from idemq import StepCall


class Provider:
    def __init__(self, path: str) -> None:
        self.url = os.environ["PROVIDER"] + path

    def send(self, step: StepCall) -> Dict[str, str]:
        """Raises an exception if it may have been done, or not."""
        headers = {"Idempotency-Key": step.key}
        request = urllib.request.Request(self.url, json.dumps(step.request).encode(), headers)
        with urllib.request.urlopen(request, timeout=step.timeout) as response:
            return dict(json.load(response))

    def find(self, step: StepCall) -> Optional[Dict[str, str]]:
        """Returns None if it has not been done."""
        try:
            with urllib.request.urlopen(f"{self.url}/{step.key}", timeout=step.timeout) as response:
                return dict(json.load(response))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise


payments = Provider("/charges")
postbox = Provider("/mails")
