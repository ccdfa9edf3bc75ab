"""encryption.py: the codec that doc/usage/encryption.md shows, and a program that enqueues or runs jobs with it."""

import hmac

from cryptography.hazmat.primitives.ciphers.aead import AESGCM


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
