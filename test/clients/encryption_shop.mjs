// encryption_shop.mjs CONNECTION ACTION...: runs the shop of encryption.mjs; CARD_KEYS contains the keys.  Prints JSON.
//
// pay ORDER CARD | work | all KEY PAYLOAD | handle | read ID | send NAME PAYLOAD

import pg from 'pg';
import { Inside, RetryLater, drain, enqueue, result, sendEvent } from 'idemq';
import { AesGcm, charge, pay } from './encryption.mjs';

const [connection, action, ...args] = process.argv.slice(2);
const config = JSON.parse(connection);
const pool = new pg.Pool(config);
const codec = new AesGcm(new Map(process.env.CARD_KEYS.split(' ').map((each) => each.split(':')).map(([name, secret]) => [name, Buffer.from(secret, 'base64')])));

/** Uses everything that is encoded. */
async function handle(job) {
  const answer = await job.step('charge', ({ request }) => ({ of: request }), { request: job.payload });
  if (job.checkpoint === null) {
    await job.saveCheckpoint({ first: job.payload });
    throw new RetryLater(0);
  }
  const event = await job.awaitEvent(`approved ${job.payload.n}`, '1 h');
  return [answer, job.checkpoint, event.payload, (await job.parents()).map((parent) => parent.result)];
}

const actions = {
  pay: async () => (await pay(pool, Number(args[0]), args[1])).outcome,
  work: () => drain(config, { cards: new Inside(charge, { codec }) }),
  all: async () => {
    const { outcome, id } = await enqueue(pool, 'cards', JSON.parse(args[1]), { key: args[0], dependsOn: args.length > 2 ? args.slice(2) : null, codec });
    return [outcome, id];
  },
  handle: () => drain(config, 'cards', handle, { codec, logger: { info() {}, warn() {}, error: console.error } }),
  read: async () => (await result(pool, args[0], { codec })).result,
  send: async () => {
    const { outcome, firstPayload, samePayload } = await sendEvent(pool, 'cards', args[0], JSON.parse(args[1]), { codec });
    return [outcome, firstPayload, samePayload];
  },
};
console.log(JSON.stringify(await actions[action]()));
await pool.end();
