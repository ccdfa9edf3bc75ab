// The time of idemq's clock, which may be ahead of the real time on a test server.
let ahead = 0;

/** Sets the number of seconds by which idemq's clock is ahead. */
export function setAhead(seconds) {
  ahead = seconds * 1000;
}

/** The time in milliseconds, to be used instead of Date.now(). */
export const now = () => Date.now() + ahead;
