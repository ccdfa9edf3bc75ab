import http from 'node:http';
import { finishedJobs } from 'idemq';

const pages = new Set(); // responses with server-sent events
http.createServer((_, response) => {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.write('event: overflow\ndata: {}\n\n'); // the page reads its list of jobs, now that it hears of changes
  pages.add(response);
  response.on('close', () => pages.delete(response));
}).listen(process.env.PORT);
for await (const { event, ...job } of finishedJobs({}, 'mail')) { // PGHOST, PGDATABASE, ...
  for (const page of pages) page.write(`event: ${event}\ndata: ${JSON.stringify(job)}\n\n`);
}
