// Markup as a value.  Values inserted into markup are escaped, unless they are markup themselves.

class Markup {
  constructor(text) {
    this.text = text;
  }

  toString() {
    return this.text;
  }
}

const entities = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };

function render(value) {
  if (value instanceof Markup) return value.text;
  if (Array.isArray(value)) return value.map(render).join('');
  if (value === null || value === undefined || value === false) return '';
  return String(value).replace(/[&<>"']/g, (character) => entities[character]);
}

/** Template tag: html`<b>${text}</b>`.  The elements of an array are concatenated; null and false produce no text. */
export function html(strings, ...values) {
  return new Markup(strings.reduce((text, string, i) => text + render(values[i - 1]) + string));
}

/** The address of a link with its parameters.  Parameters that are null are omitted. */
export function href(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined));
  return query.size > 0 ? `${path}?${query}` : path;
}
