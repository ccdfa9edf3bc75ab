\set n :n + 1
\set key :n * :clients + :client_id + 1
SELECT id, token FROM idemq.acquire('bench', :key) \gset
SELECT idemq.commit(:id, :token, '{"ok": true}');
