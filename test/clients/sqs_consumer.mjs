// Pays each message of an SQS queue once, then deletes it.
import { DeleteMessageCommand, ReceiveMessageCommand, SQSClient } from '@aws-sdk/client-sqs';
import pg from 'pg';

const sqs = new SQSClient({ endpoint: process.env.SQS_ENDPOINT }); // undefined: AWS
const QueueUrl = process.env.SQS_QUEUE;

async function pay(db, body) {
  const { id } = JSON.parse(body); // the sender's id, because the sender may send a message twice
  await db.query('BEGIN');
  const { rows: [{ first }] } = await db.query("SELECT idemq.once('payments', $1, ttl => '15 days') AS first", [id]);
  console.log(id, first ? 'first' : 'repeated');
  if (first) await db.query('SELECT pay($1)', [body]); // the effect
  await db.query('COMMIT');
}

for (;;) {
  const db = new pg.Client(); // reads PGHOST and so on
  db.on('error', () => {}); // the next query reports a broken connection
  try {
    await db.connect(); // connect to the database first, and receive nothing without it
    for (;;) {
      const { Messages = [] } = await sqs.send(new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20 }));
      for (const { Body, ReceiptHandle } of Messages) {
        try {
          await pay(db, Body);
          await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle }));
        } catch (error) {
          await db.query('ROLLBACK'); // also throws if the connection is broken
          console.error(error.message); // the message is delivered again, and finally moved to the dead-letter queue
        }
      }
    }
  } catch (error) {
    console.error(error.message);
    db.end().catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
