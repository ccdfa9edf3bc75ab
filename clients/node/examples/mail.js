import { Worker } from 'idemq';

const messages = process.env.MAIL_API ?? 'https://mail.example.com/messages';
await new Worker({}, 'mail', { concurrency: 4 }).runOutside((job) =>
  job.step('send', async ({ key, signal }) => {
    const headers = { 'Idempotency-Key': key };
    const answer = await fetch(messages, { method: 'POST', headers, body: JSON.stringify(job.payload), signal });
    if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`); // it may have been sent, or not
    return answer.json();
  }, { request: job.payload, callTimeout: 10, ask: async ({ key, signal }) => {
    const answer = await fetch(`${messages}/${key}`, { signal });
    if (answer.status === 404) return undefined; // it was not: send it now
    if (!answer.ok) throw new Error(`${answer.status}`);
    return answer.json();
  } }));
