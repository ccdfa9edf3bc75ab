-- What is longer as text than idemq.max_document is refused: arrays of each kind of element, and the longest documents, sent.
-- slow: 16 MB of text are written and read thirty times
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
SELECT idemq.create_queue('q', lease => '1 h') > 0 AS created;

-- Arrays of each kind, filled up to 16 MB as text, and to a byte more.
CREATE TABLE kinds (kind text, body jsonb);
INSERT INTO kinds
SELECT kind, jsonb_agg(element::jsonb)
FROM (VALUES
	('strings', 1000, to_json(E'x"\\\t\r\n\b\f' || chr(1) || chr(31) || chr(127) || '😀')::text),
	('\u0001', 1, to_json(repeat(chr(1), 2796200))::text),
	('long numbers', 60, '[1e131071, -1e131071, -1e-16383]'),
	('short numbers', 50000, '[0, -0.5, 1234567890, 1e-60, 1e60]'),
	('the rest', 50000, '[null, false, true, "", [], {}, {"": ""}, {"a": {"b": [[]], "c": 1}}, ["", ""]]')) k (kind, n, element),
	generate_series(1, n) GROUP BY kind;
CREATE FUNCTION filled(body jsonb, more int) RETURNS jsonb LANGUAGE sql AS $$
	SELECT body || to_jsonb(repeat('x', 16 * 1024 * 1024 - octet_length(body::text) - 4 + more)) $$;
CREATE FUNCTION answer_to(command text, argument jsonb) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	answer text;
BEGIN
	EXECUTE command INTO answer USING argument;
	RETURN coalesce(answer, 'done');
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE;
END $$;
SELECT kind, octet_length(filled(body, 0)::text) AS bytes,
	answer_to('SELECT outcome FROM idemq.enqueue(''q'', $1)', filled(body, 0)) AS longest,
	answer_to('SELECT outcome FROM idemq.enqueue(''q'', $1)', filled(body, 1)) AS longer
FROM kinds ORDER BY kind;
SELECT idemq.purge('q');

-- The longest of all three go to the worker and back.
CREATE TABLE long AS SELECT filled(jsonb_build_array(repeat(chr(1), 2796200)), 0) AS document;
SELECT id FROM long, idemq.enqueue('q', document, headers => document) \gset
SELECT idemq.checkpoint(id, token, document), idemq.release(id, token) FROM long, idemq.claim('q');
SELECT length(payload::text), length(headers::text), length(checkpoint::text), length(c::text) > 3 * 16777216 AS row_is_sent FROM idemq.claim('q') c;
