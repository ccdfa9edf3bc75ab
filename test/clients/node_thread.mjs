// node_thread.mjs: a worker in a thread of its own, for node_run.mjs, until it is told to stop; then it tells its outcomes.

import { parentPort, workerData } from 'node:worker_threads';
import { Worker } from 'idemq';

const worker = new Worker(workerData.connection, workerData.queue, { concurrency: 2 });
parentPort.once('message', () => worker.stop());
parentPort.postMessage(await worker.run((job, db) => db.query('INSERT INTO run_marks VALUES ($1, $2)', [workerData.queue, job.id]).then(() => {})));
