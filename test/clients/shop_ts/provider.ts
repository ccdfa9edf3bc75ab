// Represents the client libraries of a payment provider and of a mail provider.
const url = process.env.PROVIDER;

type Answer = { id: string };

async function send(
  path: string,
  key: string,
  body: unknown,
  signal: AbortSignal,
): Promise<Answer> {
  const headers = { 'Idempotency-Key': key };
  const answer = await fetch(url + path, {
    method: 'POST',
    headers,
    body: JSON.stringify(body),
    signal,
  });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`); // it may have been done, or not
  return (await answer.json()) as Answer;
}

async function find(path: string, key: string, signal: AbortSignal): Promise<Answer | undefined> {
  const answer = await fetch(`${url}${path}/${key}`, { signal });
  if (answer.status === 404) return undefined; // it has not been done
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return (await answer.json()) as Answer;
}

type Call = { key: string; request: unknown; signal: AbortSignal };
type Question = { key: string; signal: AbortSignal };

export const payments = {
  charge: ({ key, request, signal }: Call) => send('/charges', key, request, signal),
  find: ({ key, signal }: Question) => find('/charges', key, signal),
};
export const postbox = {
  send: ({ key, request, signal }: Call) => send('/mails', key, request, signal),
  find: ({ key, signal }: Question) => find('/mails', key, signal),
};
