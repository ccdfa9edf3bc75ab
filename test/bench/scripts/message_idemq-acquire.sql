SELECT id, token FROM idemq.acquire('bench', gen_random_uuid()::text, :payload) \gset
SELECT idemq.commit(:id, :token, '{"ok": true}');
