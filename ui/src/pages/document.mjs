// A document of a job as a tree, with text that can be copied, and an error with its stack frames.
import { html } from '../html.mjs';
import { bytes, count } from '../format.mjs';
import { key } from './layout.mjs';
import { readDocument, written } from '../jobs/document.mjs';
import { readTrace } from '../jobs/trace.mjs';

/** Maximum number of members or items that are shown on one level.  The text contains the others. */
const MOST = 200;

/** The text that replaces a document that a client's codec has encrypted. */
export const encrypted = (name) => html`<p class="none">encrypted with key ${key(name)}</p>`;

const leaf = (node) => html`<span class="${node.type === 'encrypted' ? 'quiet' : node.type}">${node.type === 'string' ? JSON.stringify(node.value) : node.value}</span>`;

function branch(name, node, depth) {
  const label = name === null ? null : html`<span class="name">${name}:</span> `;
  const children = node.type === 'object' ? node.members : node.type === 'array' ? node.items.map((item, i) => [String(i), item]) : null;
  if (!children) return html`<li>${label}${leaf(node)}</li>`;
  if (children.length === 0) return html`<li>${label}<span class="quiet">${node.type === 'object' ? '{}' : '[]'}</span></li>`;
  const rest = children.length - MOST;
  return html`<li><details${depth < 3 ? html` open` : ''}><summary>${label}<span class="quiet">${node.type === 'object' ? `{${count(children.length)}}` : `[${count(children.length)}]`}</span></summary>
<ul>${children.slice(0, MOST).map(([child, value]) => branch(child, value, depth + 1))}${rest > 0 && html`<li class="quiet">${count(rest)} more in the text</li>`}</ul></details></li>`;
}

/** The text to copy.  A button copies it if scripts are enabled; it can always be expanded. */
export const copied = (id, name, text) => html`<details class="text"><summary>${name} as text</summary><pre tabindex="0" id="${id}" aria-label="${name} as text">${text}</pre></details>
<button type="button" data-copy="${id}" hidden>Copy</button>`;

/** text: a document, or the beginning of one; whole: whether text is the whole document. */
export function tree(id, name, text, whole) {
  const node = whole ? readDocument(text) : null;
  if (!node) return html`<pre tabindex="0" id="${id}" aria-label="${name}">${text}</pre><p class="actions"><button type="button" data-copy="${id}" hidden>Copy</button></p>`;
  const top = node.type === 'object' || node.type === 'array' ? node : null;
  const items = top ? (top.type === 'object' ? top.members : top.items.map((item, i) => [String(i), item])) : [];
  return html`<ul class="tree">${items.length > 0 ? items.slice(0, MOST).map(([child, value]) => branch(child, value, 1)) : branch(null, node, 1)}${items.length > MOST && html`<li class="quiet">${count(items.length - MOST)} more in the text</li>`}</ul>
<div class="actions">${copied(id, name, written(node))}</div>`;
}

const frame = (lines) => html`<li>${lines.join('\n')}</li>`;
const frames = (parts) => parts.map((part) => (part.own
  ? html`<li class="own"><details><summary>${count(part.frames.length)} client and runtime ${part.frames.length === 1 ? 'frame' : 'frames'}</summary><ol class="frames">${part.frames.map(frame)}</ol></details></li>`
  : part.frames.map(frame)));

/** An error: its cause first, then its stack frames.  text: the stored text; cut: whether it is only the beginning. */
export function errorOf(id, text, cut) {
  const read = readTrace(text);
  if (read.parts.length === 0) return html`<pre class="error" tabindex="0" aria-label="Error">${read.text}</pre>`;
  return html`<div class="trace"><p class="cause error">${read.cause}</p>
${read.because && html`<p class="error"><span class="quiet">because of</span> ${read.because}</p>`}
${read.parts.map((part) => html`<details open><summary>${part.message.split('\n')[0].slice(0, 120) || 'Frames'}</summary><ol class="frames">${frames(part.frames)}</ol></details>`)}
${cut && html`<p class="quiet">Only the first ${bytes(text.length)} are shown.</p>`}
<div class="actions">${copied(id, 'Error', read.text)}</div></div>`;
}
