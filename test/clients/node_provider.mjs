// node_provider.mjs: an outside provider of e-mail, for node_programs.pl.  Prints its port.
//
// POST /messages sends, each time: it does not look at the key for duplicates.  GET /messages/KEY answers with what was
// sent under the key, or 404.  POST /next says how the next requests go, one after the other: ok; 502: not sent;
// sent 502: sent, and then 502; late: sent, and not answered.  GET /sent: the keys of all that was sent.

import http from 'node:http';
import { text } from 'node:stream/consumers';

const sent = [];
let next = [];

const server = http.createServer(async (request, response) => {
  const body = await text(request);
  const reply = (status, answer) => response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(answer));
  if (request.url === '/sent') return reply(200, sent);
  if (request.url === '/next') return reply(200, (next = JSON.parse(body)));
  if (request.method === 'GET') {
    const key = request.url.split('/').at(-1);
    return sent.includes(key) ? reply(200, { message: sent.indexOf(key) }) : reply(404, 'no such message');
  }
  const how = next.shift() ?? 'ok';
  if (how !== '502') sent.push(request.headers['idempotency-key']);
  if (how.endsWith('502')) return response.writeHead(502).end('<html>Bad Gateway</html>');
  if (how !== 'late') reply(200, { message: sent.length - 1 });
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
