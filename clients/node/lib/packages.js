// Packages of the application: pg, and @opentelemetry/api and NestJS if they are installed.  There is one copy of each, so the application's settings
// and parsers apply.
//
// They are looked up next to this file first, and then next to the program. If the client was installed as a link (as npm install PATH
// does), Node resolves the link, and the packages of the application are not next to its target. They are not loaded with import, because an
// import that can fail requires an await, and a module with a top-level await cannot be loaded with require().

import { createRequire } from 'node:module';

/**
 * @param {string} name @returns {any} the exports of the package; undefined if it is not installed
 */
export function load(name) {
  for (const from of [import.meta.url, process.argv[1], `${process.cwd()}/`]) {
    /** @type {NodeRequire} */
    let require;
    /** @type {string} */
    let path;
    try {
      require = createRequire(from);
      path = require.resolve(name);
    } catch {
      continue;
    }
    return require(path);
  }
  return undefined;
}

/** @type {typeof import('pg')} */
export const pg = load('pg');
if (!pg) {
  const error = new Error('idemq requires the package pg, which is not installed; run npm install pg');
  throw Object.assign(error, { code: 'ERR_MODULE_NOT_FOUND' });
}

/** @type {typeof import('@opentelemetry/api') | undefined} */
export const otel = load('@opentelemetry/api');
