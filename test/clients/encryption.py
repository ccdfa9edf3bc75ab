"""encryption.py: what doc/usage/encryption.md shows.  encryption_shop.py runs it."""

import base64
import hmac
import os

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from idemq import Inside, Worker, enqueue


class AesGcm:
    """Encrypts documents with AES-256-GCM."""

    name = "aes-gcm"

    def __init__(self, secrets):
        """secrets: 32 random bytes by the name of the key, the current one first."""
        self.keys = list(secrets)
        self._secrets = secrets

    def _derive(self, key, use):
        return hmac.digest(self._secrets[key], use, "sha256")

    def encode(self, data, key):
        nonce = hmac.digest(self._derive(key, b"nonce"), data, "sha256")[:12]  # the same for equal documents
        return nonce + AESGCM(self._derive(key, b"encrypt")).encrypt(nonce, data, None)

    def decode(self, data, key):
        return AESGCM(self._derive(key, b"encrypt")).decrypt(data[:12], data[12:], None)


# CARD_KEYS is "2026-11:BASE64", and during a rotation "2026-12:BASE64 2026-11:BASE64"
secrets = dict(each.split(":") for each in os.environ["CARD_KEYS"].split())
codec = AesGcm({name: base64.b64decode(secret) for name, secret in secrets.items()})


def pay(conn, order, card):
    return enqueue(conn, "cards", {"order": order, "card": card}, key=f"order-{order}", codec=codec)


def charge(job, conn):
    paid = job.step("charge", provider, {"card": job.payload["card"]})
    conn.execute("INSERT INTO payments VALUES (%s, %s)", [job.payload["order"], paid["id"]])


def provider(step):
    """Instead of a request to the provider."""
    return {"id": f"paid with {step.request['card']}"}


def work(dsn):
    Worker(dsn, {"cards": Inside(charge, codec=codec)}).run()
