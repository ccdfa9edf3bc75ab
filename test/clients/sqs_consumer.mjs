// Each message of an SQS queue is paid once, and then deleted.
import { DeleteMessageCommand, ReceiveMessageCommand, SQSClient } from '@aws-sdk/client-sqs';
import pg from 'pg';

const sqs = new SQSClient({ endpoint: process.env.SQS_ENDPOINT }); // none: that of AWS
const QueueUrl = process.env.SQS_QUEUE;

async function pay(db, body) {
  const { id } = JSON.parse(body); // the sender's: it may send one message twice
  await db.query('BEGIN');
  const { rows: [{ first }] } = await db.query("SELECT idemq.once('payments', $1, ttl => '15 days') AS first", [id]);
  console.log(id, first ? 'first' : 'repeated');
  if (first) await db.query('SELECT pay($1)', [body]); // the effect
  await db.query('COMMIT');
}

for (;;) {
  const db = new pg.Client(); // PGHOST and so on
  db.on('error', () => {}); // what breaks the connection is met by the next query
  try {
    await db.connect(); // the database first: without it nothing is received
    for (;;) {
      const { Messages = [] } = await sqs.send(new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 20 }));
      for (const { Body, ReceiptHandle } of Messages) {
        try {
          await pay(db, Body);
          await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle }));
        } catch (error) {
          await db.query('ROLLBACK'); // where the connection is broken, this throws too
          console.error(error.message); // the message comes again, and at last to the dead-letter queue
        }
      }
    }
  } catch (error) {
    console.error(error.message);
    db.end().catch(() => {});
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}
