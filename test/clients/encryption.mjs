import { createCipheriv, createDecipheriv, createHmac } from 'node:crypto';

/** Encrypts documents with AES-256-GCM. */
export class AesGcm {
  name = 'aes-gcm';
  #secrets;

  /** @param {Map<string, Uint8Array>} secrets 32 random bytes by the name of the key, the current one first */
  constructor(secrets) {
    this.keys = [...secrets.keys()];
    this.#secrets = secrets;
  }

  /** @param {Uint8Array} data @param {string} key */
  encode(data, key) {
    const nonce = this.#derive(key, 'nonce', data).subarray(0, 12); // the same for equal documents
    const cipher = createCipheriv('aes-256-gcm', this.#derive(key, 'encrypt'), nonce);
    return Buffer.concat([nonce, cipher.update(data), cipher.final(), cipher.getAuthTag()]);
  }

  /** @param {Uint8Array} data @param {string} key */
  decode(data, key) {
    const cipher = createDecipheriv('aes-256-gcm', this.#derive(key, 'encrypt'), data.subarray(0, 12), { authTagLength: 16 });
    cipher.setAuthTag(data.subarray(-16));
    return Buffer.concat([cipher.update(data.subarray(12, -16)), cipher.final()]);
  }

  /** @param {string} key @param {string} use @param {Uint8Array[]} data */
  #derive(key, use, ...data) {
    const secret = this.#secrets.get(key);
    if (!secret) throw new Error(`there is no key ${key}`);
    const own = createHmac('sha256', secret).update(use).digest();
    return data.length > 0 ? createHmac('sha256', own).update(data[0]).digest() : own;
  }
}
