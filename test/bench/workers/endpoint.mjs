// endpoint.mjs: what idemq-work --http is measured with: an endpoint that does nothing, and not more than it must of HTTP, so that
// what is measured is not its framework.  Says its port.
import { createServer } from 'node:net';

const END = '\r\n\r\n';
const ANSWER = 'HTTP/1.1 204 No Content\r\n\r\n';

const server = createServer({ noDelay: true }, (socket) => {
  let text = '';
  socket.setEncoding('latin1').on('error', () => {}).on('data', (chunk) => {
    text += chunk;
    for (let end; (end = text.indexOf(END)) >= 0;) {
      const size = end + END.length + Number(/^content-length: (\d+)\r$/im.exec(text.slice(0, end + 1))[1]);
      if (text.length < size) return;
      text = text.slice(size);
      socket.write(ANSWER);
    }
  });
});
server.listen(0, '127.0.0.1', () => console.log(`port ${server.address().port}`));
