// Packages of the application: pg, and @opentelemetry/api where it is installed.  There is one of each, whose settings and parsers are the
// application's.
//
// They are looked for beside this file first, and then where the program is. A client that was installed as a link (npm install PATH makes one)
// is for Node where the link leads to, and what the application has installed is not beside that. They are not loaded by import: an import
// that may fail would need an await, and no module with a top-level await can be loaded by require().

import { createRequire } from 'node:module';

/**
 * @param {string} name @returns {any} what the package exports; undefined: it is not installed
 */
function load(name) {
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
  const error = new Error('idemq requires the package pg, which is not installed: run npm install pg');
  throw Object.assign(error, { code: 'ERR_MODULE_NOT_FOUND' });
}

/** @type {typeof import('@opentelemetry/api') | undefined} */
export const otel = load('@opentelemetry/api');
