// Reads a jsonb document from the server's text without losing digits: numbers remain text.

/** SQL: the name of the key with which a codec of the clients has encrypted a document; NULL for a plain one. */
export const keyOf = (column) => `CASE WHEN jsonb_typeof(${column} -> 'idemq_codec') = 'string' AND jsonb_typeof(${column} -> 'data') = 'string' THEN ${column} ->> 'key' END`;

/** Maximum depth of a document.  A deeper document is shown as text. */
const DEEPEST = 40;

/** An object that a codec of the clients has encrypted is not shown. A dead-letter record contains some. */
function veiled(node) {
  const members = new Map(node.members);
  const is = members.size === 3 && ['idemq_codec', 'key', 'data'].every((name) => members.get(name)?.type === 'string');
  return is ? { type: 'encrypted', value: `encrypted with key ${members.get('key').value}` } : node;
}

/** Reads a whole document: {type, value | items | members}.  Returns null if the text is not a document, or if the document is too deep. */
export function readDocument(text) {
  let at = 0;
  const space = () => { while (/\s/.test(text[at] ?? '')) at += 1; };
  const string = () => {
    const begun = at;
    for (at += 1; text[at] !== '"'; at += 1) {
      if (at >= text.length) throw new SyntaxError();
      if (text[at] === '\\') at += 1;
    }
    at += 1;
    return JSON.parse(text.slice(begun, at));
  };
  const list = (end, item) => {
    const items = [];
    at += 1;
    for (space(); text[at] !== end; space()) {
      if (items.length > 0) {
        if (text[at] !== ',') throw new SyntaxError();
        at += 1;
        space();
      }
      items.push(item());
    }
    at += 1;
    return items;
  };
  const value = (depth) => {
    if (depth > DEEPEST) throw new RangeError();
    space();
    if (text[at] === '{') {
      return veiled({ type: 'object', members: list('}', () => {
        const name = string();
        space();
        if (text[at] !== ':') throw new SyntaxError();
        at += 1;
        return [name, value(depth + 1)];
      }) });
    }
    if (text[at] === '[') return { type: 'array', items: list(']', () => value(depth + 1)) };
    if (text[at] === '"') return { type: 'string', value: string() };
    const word = /^(?:true|false|null|-?[0-9][0-9.eE+-]*)/.exec(text.slice(at, at + 2000));
    if (!word) throw new SyntaxError();
    at += word[0].length;
    return { type: /^[tf]/.test(word[0]) ? 'boolean' : word[0] === 'null' ? 'null' : 'number', value: word[0] };
  };
  try {
    const read = value(0);
    space();
    return at === text.length ? read : null;
  } catch {
    return null;
  }
}

/** A document as indented text, for copying. */
export function written(node, indent = '') {
  const deeper = `${indent}  `;
  if (node.type === 'object')
    return node.members.length === 0 ? '{}' : `{\n${node.members.map(([name, value]) => `${deeper}${JSON.stringify(name)}: ${written(value, deeper)}`).join(',\n')}\n${indent}}`;
  if (node.type === 'array') return node.items.length === 0 ? '[]' : `[\n${node.items.map((item) => deeper + written(item, deeper)).join(',\n')}\n${indent}]`;
  return node.type === 'string' ? JSON.stringify(node.value) : node.value;
}
