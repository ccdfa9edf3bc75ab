"""service.py: the outside service of letters.py, for workers.pl.

Keeps a line for each request in the file LETTERS: key, token, recipient.  The request
that AT names is interrupted: with kill -9 or SIGTERM after it is done, refused, or
answered with HTML.
"""

import json
import os
import signal


def send(to, *, idempotency_key, fencing_token):
    """Sends a letter; the receiver is to notice by the key that it has it already."""
    how, _, at = os.environ.get("AT", "").partition(" ")
    if how == "refuse" and at == to:
        raise OSError(f"no way to\0 {to}")
    if how == "garble" and at == to:
        json.loads("<html><title>502 Bad Gateway</title></html>")  # as a proxy answers
    with open(os.environ["LETTERS"], "a") as file:
        print(idempotency_key, fencing_token, to, file=file)
    if how == "end" and at == to:
        os.kill(os.getpid(), signal.SIGTERM)
    if how == "die" and at == to:
        os.kill(os.getpid(), signal.SIGKILL)
