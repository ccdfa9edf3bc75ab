// consumer.js SOCKET_DIRECTORY PORT DATABASE NAME: consumer.py with node-postgres.
//
// Two deliveries are worked on at once, through a pool: each transaction has a
// connection of its own.
'use strict';

const readline = require('readline');
const { Pool } = require('pg');

const [host, port, database, name] = process.argv.slice(2);
const pool = new Pool({ host, port: Number(port), database, user: 'postgres', max: 2 });
pool.on('error', () => {});  // an idle connection broke: the pool has dropped it
const seen = {};

function count(outcome) {
  seen[outcome] = (seen[outcome] || 0) + 1;
}

// The effect and the commit of the job share a transaction.
async function apply(id, token, message) {
  const client = await pool.connect();
  let broken;
  try {
    await client.query('BEGIN');
    await client.query('SELECT idemq.commit($1, $2)', [id, token]);
    await client.query('UPDATE accounts SET balance = balance + $1 WHERE account = $2',
      [message.amount, message.account]);
    await client.query('COMMIT');
  } catch (error) {
    // A connection that cannot roll back, or leads to a standby (25006), is of no use any more.
    broken = await client.query('ROLLBACK').then(() => error.code === '25006', () => true);
    throw error;
  } finally {
    client.release(broken);
  }
}

// Answers whether the message is settled: only then is it acknowledged.
async function handle(message) {
  const { rows: [job] } = await pool.query(
    "SELECT outcome, id, token FROM idemq.acquire('inbox', $1, $2, lease => '10 s', worker => $3)",
    [message.key, message, name]);
  count(job.outcome);
  if (['completed', 'dead', 'cancelled'].includes(job.outcome)) return true;
  if (!['claimed', 'claimed_again'].includes(job.outcome)) return false;
  await sleep(Math.random() * 10);  // the work
  try {
    await apply(job.id, job.token, message);  // bigint comes as a string, and goes back as one
  } catch (error) {
    if (!['IQ001', 'IQ006'].includes(error.code)) throw error;
    count(error.code);
    return false;
  }
  return true;
}

function sleep(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

async function consume(messages) {
  for (let message; (message = messages.shift()) !== undefined;) {
    if (!await handle(message)) {
      messages.push(message);
      await sleep(Math.random() * 5);
    }
  }
}

async function main() {
  const messages = [];
  for await (const line of readline.createInterface({ input: process.stdin })) {
    messages.push(JSON.parse(line));
  }
  await Promise.all([consume(messages), consume(messages)]);
  await pool.end();
  console.log(JSON.stringify(seen));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
