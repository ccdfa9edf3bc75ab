// idemq: a client for the job queue in PostgreSQL.  index.d.ts documents it.

export { ClusterWorker } from './cluster.js';
export { ensureHandler, ensureQueue, ensureTopic } from './declare.js';
export { enqueue, enqueueMany, enqueueStatement } from './enqueue.js';
export { finishedJobs } from './finished.js';
export { cancelMany, cancelMatching, enqueueGraph, enqueueSequenced, flow, pauseGroup, publish, resumeGroup, sendEvent, waitResults } from './flows.js';
export { createPool } from './pool.js';
export { Inside, Kind, Outside } from './handlers.js';
export { currentJob } from './logs.js';
export { cancel, job, pause, reschedule, result, resume, retry, schedule, unschedule, why } from './manage.js';
export { advanceClock, assertEnqueued, makeDue } from './testing.js';
export { Worker, drain } from './worker.js';
export {
  AlreadyCommitted,
  Cancelled,
  Dead,
  DuplicateKey,
  HoldBack,
  IdemqError,
  KeyReused,
  NoSuchJob,
  NoSuchQueue,
  QueueFull,
  Refused,
  RetryLater,
  Snooze,
  StaleToken,
  Waiting,
} from './errors.js';
