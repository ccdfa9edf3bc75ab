// Reads the text of an error: its cause first, then its stack frames, with the client's own frames collapsed.
// The supported formats are those of Python and Node (V8).

const own = /[\\/](?:idemq|asyncio|concurrent|threading\.py|psycopg(?:_pool)?|pg|pg-pool|pg-protocol)[\\/.]|[\\/](?:threading|runpy)\.py"|\bnode:|node_modules[\\/](?:idemq|pg)\b|clients[\\/](?:node|python)[\\/]|<frozen /;

/** Splits a text into lines if its line ends were escaped as \n. */
export function unescape(text) {
  // A Windows path may also contain \n, so look for frames.
  if (!text || /\n/.test(text) || !/\\n\s+(?:File \\?"|at )/.test(text)) return text;
  return text.replace(/^"(.*)"$/s, '$1').replace(/\\(n|r|t|"|'|\\)/g, (whole, letter) => ({ n: '\n', r: '', t: '\t' }[letter] ?? letter));
}

const python = /^(?:[ \t]*\+ Exception Group )?[ \t]*Traceback \(most recent call last\):/m;
const v8 = /^[ \t]+at .*(?::\d+:\d+\)?|\(<anonymous>\)|\(native\))(?: \{)?$/m;

/** Whether a text contains stack frames. */
export const isTrace = (text) => python.test(text ?? '') || v8.test(text ?? '');

/** Combines consecutive frames of the client, and consecutive other frames: [{own, frames}]. */
function fold(frames) {
  const folded = [];
  for (const frame of frames) {
    const isOwn = own.test(frame[0]);
    if (folded.at(-1)?.own === isOwn) folded.at(-1).frames.push(frame);
    else folded.push({ own: isOwn, frames: [frame] });
  }
  return folded;
}

function readPython(lines) {
  const parts = [];
  let part = null;
  for (const whole of lines) {
    // In an exception group, each line begins with bars.
    const line = whole.replace(/^\s*[|+](?:-[-+ \d]*$)? ?/, '');
    if (/^\s*(?:Exception Group )?Traceback \(most recent call last\):/.test(line)) {
      parts.push(part = { frames: [], message: [] });
    } else if (part && part.message.length === 0 && /^\s*File "/.test(line)) {
      part.frames.push([line]);
    } else if (part && part.message.length === 0 && part.frames.length > 0 && /^\s/.test(line)) {
      part.frames.at(-1).push(line);
    } else if (/^(?:The above exception was the direct cause|During handling of the above exception)/.test(line)) {
      if (part) part.then = line;
      part = { frames: [], message: [], between: true };
    } else if (part && !part.between) {
      part.message.push(line);
    } else if (!part) {
      parts.push(part = { frames: [], message: [line] });
    }
  }
  return parts;
}

function readV8(lines) {
  const parts = [];
  let part = null;
  for (const line of lines) {
    const cause = /^\s*\[cause\]: (.*)$/.exec(line);
    if (cause) parts.push(part = { frames: [], message: [cause[1]] });
    else if (/^\s+at /.test(line)) {
      if (!part) parts.push(part = { frames: [], message: [] });
      part.frames.push([line]);
    } else if (part && part.frames.length === 0) part.message.push(line);
    else if (!part) parts.push(part = { frames: [], message: [line] });
    else if (!/^\s*[{}],?\s*$/.test(line)) part.frames.push([line]);
  }
  return parts;
}

/**
 * Reads an error's text: {cause, because, parts}.  cause: the error that ended the attempt; because: the error that caused
 * it, if any; parts: each error with its frames, in the order of the text; empty for a text without frames.
 */
export function readTrace(given) {
  const text = (unescape(given) ?? '').replace(/\r\n?/g, '\n').trimEnd();
  const lines = text.split('\n');
  const isPython = python.test(text);
  if (!isPython && !v8.test(text)) return { text, cause: text, because: null, parts: [] };
  const read = (isPython ? readPython(lines) : readV8(lines)).map((part) => ({ ...part, message: part.message.join('\n').trim() }));
  // In Python, the last error ended the attempt, and the first one is its cause.  In V8, the order is reversed.
  const [ended, first] = isPython ? [read.at(-1), read.find((part) => part.frames.length > 0)] : [read[0], read.at(-1)];
  return {
    text,
    cause: ended.message || lines.at(-1),
    because: first !== ended && first?.message ? first.message : null,
    parts: read.filter((part) => part.frames.length > 0).map((part) => ({ message: part.message, frames: fold(part.frames) })),
  };
}

/** The single line of an error that a list shows. */
export function causeOf(text) {
  if (!text) return text;
  const { cause } = readTrace(text);
  return cause.split('\n').find((line) => line.trim() !== '')?.trim() ?? '';
}
