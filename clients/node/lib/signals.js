// Signals that end workers: one listener of the process, however many workers there are in it.

/** @type {Set<() => void>} */
const stops = new Set();
const stopAll = () => stops.forEach((stop) => stop());

/** Calls stop at SIGTERM and SIGINT. @param {() => void} stop @returns {() => void} ends that */
export function onSignals(stop) {
  if (stops.size === 0) for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, stopAll);
  stops.add(stop);
  return () => {
    if (stops.delete(stop) && stops.size === 0) for (const signal of ['SIGTERM', 'SIGINT']) process.off(signal, stopAll);
  };
}
