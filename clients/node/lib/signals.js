// Signals that stop workers. The process has one listener, however many workers it runs.

/** @type {Set<() => void>} */
const stops = new Set();
let told = false;
/** Milliseconds that code may still run after its worker has ended. */
const hungTimeout = 500;

const stopAll = () => {
  told = true;
  stops.forEach((stop) => stop());
};

/** Calls stop at SIGTERM and SIGINT. @param {() => void} stop @returns {() => void} a function that undoes this */
export function onSignals(stop) {
  if (stops.size === 0) for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, stopAll);
  stops.add(stop);
  return () => {
    if (stops.delete(stop) && stops.size === 0) for (const signal of ['SIGTERM', 'SIGINT']) process.off(signal, stopAll);
  };
}

/**
 * Ends the process if a signal has told it to stop and a handler keeps it alive, because JavaScript cannot be stopped. It waits for the
 * grace periods of other workers, and gives code a short time to end by itself.
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
