// sqs_server.mjs [PORT]: fauxqs, a server that answers as SQS does, from memory, on loopback alone.
// Says its port.
import { buildApp } from 'fauxqs';

const app = buildApp({ logger: false });
await app.listen({ port: Number(process.argv[2] ?? 0), host: '127.0.0.1' });
console.log(app.server.address().port);
