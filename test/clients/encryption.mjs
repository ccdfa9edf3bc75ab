// encryption.mjs: what doc/usage/encryption.md shows.  encryption_shop.mjs runs it.

import { createCipheriv, createDecipheriv, createHmac } from 'node:crypto';
import { Inside, Worker, enqueue } from 'idemq';

const hmac = (key, data) => createHmac('sha256', key).update(data).digest();

/** Encrypts documents with AES-256-GCM. */
export class AesGcm {
  name = 'aes-gcm';
  #secrets;

  /** secrets: 32 random bytes by the name of the key, the current one first. */
  constructor(secrets) {
    this.keys = [...secrets.keys()];
    this.#secrets = secrets;
  }

  #derive(key, use) {
    return hmac(this.#secrets.get(key), use);
  }

  encode(data, key) {
    const nonce = hmac(this.#derive(key, 'nonce'), data).subarray(0, 12); // the same for equal documents
    const cipher = createCipheriv('aes-256-gcm', this.#derive(key, 'encrypt'), nonce);
    return Buffer.concat([nonce, cipher.update(data), cipher.final(), cipher.getAuthTag()]);
  }

  decode(data, key) {
    const nonce = data.subarray(0, 12);
    const decipher = createDecipheriv('aes-256-gcm', this.#derive(key, 'encrypt'), nonce, { authTagLength: 16 });
    decipher.setAuthTag(data.subarray(-16));
    return Buffer.concat([decipher.update(data.subarray(12, -16)), decipher.final()]);
  }
}

// CARD_KEYS is '2026-11:BASE64', and during a rotation '2026-12:BASE64 2026-11:BASE64'
const secrets = (process.env.CARD_KEYS ?? '').split(' ').map((each) => each.split(':'));
const codec = new AesGcm(new Map(secrets.map(([name, secret]) => [name, Buffer.from(secret ?? '', 'base64')])));

export function pay(client, order, card) {
  return enqueue(client, 'cards', { order, card }, { key: `order-${order}`, codec });
}

export async function charge(job, client) {
  const { order, card } = job.payload;
  const paid = await job.step('charge', provider, { request: { card } });
  await client.query('INSERT INTO payments VALUES ($1, $2)', [order, paid.id]);
}

/** Instead of a request to the provider. */
async function provider({ request }) {
  return { id: `paid with ${request.card}` };
}

export async function work(connection) {
  await new Worker(connection, { cards: new Inside(charge, { codec }) }).run();
}
