// The worker of the shop. SIGTERM ends it when its jobs are done.
import { Worker } from 'idemq';
import { handlers } from './shop.js';

await new Worker(process.env.DSN!, handlers).run();
