// Pages that stay up to date.  A page is divided into named parts.  A browser that shows the page asks for the same address
// again, with the header x-idemq-have: hashes of what it shows.  The answer contains only the parts that have changed; or, if
// parts have come or gone, the whole page.
import { createHash } from 'node:crypto';
import { html } from './html.mjs';

export const HAVE = 'x-idemq-have';

/** A part of a page.  name: unique on the page; tag, attributes: of its element. */
export function part(name, markup, { tag = 'div', attributes = '' } = {}) {
  const id = encodeURIComponent(name).replace(/-/g, '%2D');
  return html`<${tag} data-part="${id}"${attributes && html` ${attributes}`}>${markup}</${tag}><!--${id}-->`;
}

// The browser updates distances of times itself, so they are not a change.
const hash = (text) => createHash('sha256').update(text.replace(/(<time [^>]*>)[^<]*<\/time>/g, '$1')).digest('base64url').slice(0, 8);

/** The parts of a rendered page, by name, and the hashes of the surrounding frame and of each part. */
function split(text) {
  const parts = new Map();
  const frame = text.replace(/<(\w+) data-part="([^"]*)"[^]*?<!--\2-->/g, (whole, _, name) => {
    parts.set(name, whole.slice(0, whole.lastIndexOf('<!--')));
    return `{${name}}`;
  });
  return { parts, hashes: [hash(frame), ...[...parts.values()].map(hash)] };
}

/** The hashes that a browser has when it shows this text. */
export const have = (text) => split(text).hashes.join();

/** The answer to a browser that has these hashes: the parts that have changed. */
export function changes(text, title, had) {
  const { parts, hashes } = split(text);
  const old = had.split(',');
  const answer = { title, have: hashes.join() };
  if (old[0] !== hashes[0]) return { ...answer, all: text };
  return { ...answer, parts: Object.fromEntries([...parts].filter((_, i) => old[i + 1] !== hashes[i + 1])) };
}
