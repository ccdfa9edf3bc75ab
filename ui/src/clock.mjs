// The time by idemq's clock.  A server that is for tests may have it ahead of everyone else's.
let ahead = 0;

/** Sets by how many seconds idemq's clock is ahead. */
export function setAhead(seconds) {
  ahead = seconds * 1000;
}

/** The time, in milliseconds, as Date.now() has it elsewhere. */
export const now = () => Date.now() + ahead;
