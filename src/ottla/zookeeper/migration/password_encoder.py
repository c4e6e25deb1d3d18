"""Decode the passwords of brokers' dynamic settings, which ZooKeeper has encrypted (Kafka's PasswordEncoder).

The key comes from `password.encoder.secret` by PBKDF2; how, is written beside each password.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

_FIELD: Final = re.compile(
    r"(?:^|,)(keyFactoryAlgorithm|cipherAlgorithm|keyLength|salt|iterations|encryptedPassword"
    r"|passwordLength|initializationVector):([^,]*)"
)
_HASHES: Final = {
    "PBKDF2WithHmacSHA512": "sha512",
    "PBKDF2WithHmacSHA256": "sha256",
    "PBKDF2WithHmacSHA1": "sha1",
}


def is_encoded(value: str) -> bool:
    return "encryptedPassword:" in value and "keyFactoryAlgorithm:" in value


def decode_password(value: str, secret: str) -> str:
    """The password; ValueError if this secret is not the one, or the cipher is not known."""
    from cryptography.hazmat.primitives import padding
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    fields = dict(_FIELD.findall(value))
    try:
        hash_name = _HASHES[fields["keyFactoryAlgorithm"]]
        cipher, mode, _ = fields["cipherAlgorithm"].split("/")
        salt = base64.b64decode(fields["salt"])
        encrypted = base64.b64decode(fields["encryptedPassword"])
        vector = base64.b64decode(fields["initializationVector"])
        key_bytes, iterations = int(fields["keyLength"]) // 8, int(fields["iterations"])
        length = int(fields["passwordLength"])
    except (KeyError, ValueError) as error:
        raise ValueError(f"its encoding is not known: {error}") from None
    if cipher != "AES" or mode not in ("CBC", "GCM"):
        raise ValueError(f"its cipher {fields['cipherAlgorithm']} is not known")
    key = hashlib.pbkdf2_hmac(hash_name, secret.encode(), salt, iterations, key_bytes)
    try:
        if mode == "GCM":
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            plain = AESGCM(key).decrypt(vector, encrypted, None)
        else:
            decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
            unpadder = padding.PKCS7(128).unpadder()
            plain = decryptor.update(encrypted) + decryptor.finalize()
            plain = unpadder.update(plain) + unpadder.finalize()
        text = plain.decode()
    except Exception:
        raise ValueError("password.encoder.secret is not the one that it was encrypted with") from None
    if len(text) != length:
        raise ValueError("password.encoder.secret is not the one that it was encrypted with")
    return text
