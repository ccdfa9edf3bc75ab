SELECT id, token FROM idemq.claim('bench') \gset
SELECT idemq.commit(:id, :token, '{"ok": true}');
