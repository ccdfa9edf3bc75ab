"""service.py: the outside service of letters.py, for workers.pl.

Keeps a line for each request in the file LETTERS: key, token, recipient.  The request
that AT names is interrupted: with kill -9 after it is done, or refused.
"""

import os
import signal


def send(to, *, idempotency_key, fencing_token):
    """Sends a letter; the receiver is to notice by the key that it has it already."""
    how, _, at = os.environ.get("AT", "").partition(" ")
    if how == "refuse" and at == to:
        raise OSError(f"no way to\0 {to}")
    with open(os.environ["LETTERS"], "a") as file:
        print(idempotency_key, fencing_token, to, file=file)
    if how == "die" and at == to:
        os.kill(os.getpid(), signal.SIGKILL)
