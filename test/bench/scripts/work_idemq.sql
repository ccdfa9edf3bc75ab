-- Finding no job is no error here: id 0, and round again.
SELECT coalesce(max(id), 0) AS id, coalesce(max(token), 0) AS token FROM idemq.claim('bench') \gset
\if :id > 0
SELECT idemq.commit(:id, :token, '{"ok": true}');
\endif
