// Signals that end workers: one listener of the process, however many workers there are in it.

/** @type {Set<() => void>} */
const stops = new Set();
let told = false;
/** Milliseconds that code which goes on when its worker has ended may still take. */
const hungTimeout = 500;

const stopAll = () => {
  told = true;
  stops.forEach((stop) => stop());
};

/** Calls stop at SIGTERM and SIGINT. @param {() => void} stop @returns {() => void} ends that */
export function onSignals(stop) {
  if (stops.size === 0) for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, stopAll);
  stops.add(stop);
  return () => {
    if (stops.delete(stop) && stops.size === 0) for (const signal of ['SIGTERM', 'SIGINT']) process.off(signal, stopAll);
  };
}

/**
 * Ends a process that a signal has told to end, and that a handler keeps alive which does not: JavaScript cannot be stopped. Not
 * while other workers have their grace. What would have ended by itself by then has ended.
 * @param {() => void} say called before
 */
export function stopWhenHung(say) {
  if (!told) return;
  const timer = setInterval(() => {
    if (stops.size > 0) return;
    clearInterval(timer);
    say();
    process.exit();
  }, hungTimeout);
  timer.unref();
}
