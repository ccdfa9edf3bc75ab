// The form of a queue's settings, and the confirmation of a change.
import { html } from '../html.mjs';
import { count } from '../format.mjs';
import { table } from './layout.mjs';
import { addressOf } from './queue.mjs';

/** Shows the message about invalid values.  trouble: {message, fields}, or null. */
export const troubleOf = (trouble) => trouble && html`<p class="notice bad" role="alert" id="settings-trouble">${trouble.message}</p>`;
export const invalid = (trouble, name) => (trouble?.fields?.includes(name) ? html` aria-invalid="true" aria-describedby="settings-trouble"` : '');

function input([name, type, , optional], value, trouble) {
  if (type === 'boolean') return html`<select name="${name}"${invalid(trouble, name)}>${[['true', 'yes'], ['false', 'no']].map(([other, word]) => html`<option value="${other}"${other === value ? html` selected` : ''}>${word}</option>`)}</select>`;
  return html`<input name="${name}" value="${value}"${optional && html` placeholder="none"`}${type === 'int' && html` inputmode="numeric"`} autocomplete="off" spellcheck="false"${invalid(trouble, name)}>`;
}

/** values: the values of the fields; was: the values that the user wants to replace; trouble: {message, fields}, or null. */
export function settingsForm(queue, groups, values, was, trouble) {
  return html`${troubleOf(trouble)}
<p class="quiet">A duration is written as 90 s, 5 min or 1 day. An empty field means none.</p>
<form method="get" action="${addressOf(queue)}/settings/confirm" class="settings-form">${Object.entries(groups).map(([title, fields]) => html`<fieldset><legend>${title}</legend><div class="fields">${fields.map((field) => html`<label>${field[0]}<input type="hidden" name="was_${field[0]}" value="${was[field[0]]}">${input(field, values[field[0]], trouble)}<span class="quiet small">${field[2]}</span></label>`)}</div></fieldset>`)}
<p class="actions"><button class="do">Review the change</button> <a class="button" href="${addressOf(queue)}">Cancel</a></p></form>`;
}

/** subject: what is changed; changes: {name, from, to}; given: the values to be sent again; action: where the form leads; cancel: where the user goes without the change. */
export function confirmPage({ subject, changes, notes = [], token, action, cancel, given, verb = 'Change', does = 'changes', heads = ['Setting', 'Now', 'New'], more = null }) {
  if (changes.length === 0) return html`<p class="why">The settings of ${subject} already have these values.</p><p><a class="button" href="${cancel}">Back to the form</a></p>`;
  const none = html`<span class="quiet">none</span>`;
  return html`<p class="why">This ${does} ${subject}. The change is recorded in the audit log.</p>
${table('Changes', heads, changes.map(({ name, from, to }) => [html`<code>${name}</code>`, from === '' ? none : html`<span class="whole">${from}</span>`, to === '' ? none : html`<b class="whole">${to}</b>`]), '')}
${more}${notes.map((note) => html`<p class="quiet">${note}</p>`)}
<form method="post" action="${action}" class="actions"><input type="hidden" name="csrf" value="${token}">${Object.entries(given).map(([name, value]) => html`<input type="hidden" name="${name}" value="${value}">`)}
<button class="do">${verb} ${verb === 'Change' && html`${count(changes.length)} ${changes.length === 1 ? 'setting' : 'settings'}`}</button> <a class="button" href="${cancel}">Keep as is</a></form>`;
}
