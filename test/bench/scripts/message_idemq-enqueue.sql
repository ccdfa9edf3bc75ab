SELECT id FROM idemq.enqueue('bench', :payload, key => gen_random_uuid()::text) \gset
SELECT id, token FROM idemq.claim('bench') \gset
SELECT idemq.commit(:id, :token, '{"ok": true}');
