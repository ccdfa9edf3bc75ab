// Markup as a value: what is put into it is escaped, unless it is markup itself.

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

/** Template tag: html`<b>${text}</b>`; an array is put one after the other, null and false are nothing. */
export function html(strings, ...values) {
  return new Markup(strings.reduce((text, string, i) => text + render(values[i - 1]) + string));
}

/** A link's address with its parameters; those that are null are left out. */
export function href(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined));
  return query.size > 0 ? `${path}?${query}` : path;
}
