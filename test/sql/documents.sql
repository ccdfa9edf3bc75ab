-- What is longer as text than idemq.max_document is refused: what can be claimed can be sent.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
SHOW idemq.max_document;
SELECT idemq.create_queue('q', lease => '1 h') > 0 AS created;

-- An array of elements of each kind, filled up to 16 MB as text, and to a byte more; documents_large.sql has one of each kind.
CREATE TABLE kinds (kind text, body jsonb);
INSERT INTO kinds
SELECT 'all', jsonb_agg(element::jsonb)
FROM (VALUES
	('strings', 100, to_json(E'x"\\\t\r\n\b\f' || chr(1) || chr(31) || chr(127) || '😀')::text),
	('\u0001', 1, to_json(repeat(chr(1), 100000))::text),
	('long numbers', 2, '[1e131071, -1e131071, -1e-16383]'),
	('short numbers', 1000, '[0, -0.5, 1234567890, 1e-60, 1e60]'),
	('the rest', 1000, '[null, false, true, "", [], {}, {"": ""}, {"a": {"b": [[]], "c": 1}}, ["", ""]]')) k (kind, n, element),
	generate_series(1, n);
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

-- Every function that takes a document, with one of 17 MB as text, and of 3 MB as jsonb.
CREATE TABLE long AS SELECT to_jsonb(repeat(chr(1), 3000000)) AS document;
SELECT id FROM idemq.enqueue('q', '1', key => 'k') \gset
SELECT token FROM idemq.claim('q') \gset
SELECT id AS other FROM idemq.enqueue('q', '2', key => 'k2') \gset
SELECT answer_to(replace(replace(replace(command, ':id', :'id'), ':token', :'token'), ':other', :'other'), document) AS answer, command
FROM long, (VALUES
	('SELECT idemq.enqueue(''q'', $1)'),
	('SELECT idemq.enqueue(''q'', ''1'', headers => $1)'),
	('SELECT idemq.enqueue(''q'', $1, key => ''k2'', on_duplicate => ''replace'')'),
	('SELECT idemq.enqueue(''q'', ''1'', key => ''k2'', headers => $1, on_duplicate => ''replace'')'),
	('SELECT idemq.enqueue_many(''q'', ARRAY[''1'', $1])'),
	('SELECT idemq.enqueue_many(''q'', ARRAY[''1''::jsonb], headers => ARRAY[$1])'),
	('SELECT idemq.acquire(''q'', ''new'', $1)'),
	('SELECT idemq.schedule(''s'', ''0 0 1 1 *'', ''q'', $1)'),
	('SELECT idemq.schedule(''s'', ''0 0 1 1 *'', ''q'', ''1'', headers => jsonb_build_object(''a'', $1))'),
	('SELECT idemq.checkpoint(:id, :token, $1)'),
	('SELECT idemq.commit(:id, :token, $1)'),
	('SELECT idemq.try_commit(:id, :token, $1)'),
	('SELECT idemq.commit_many(ARRAY[:id], ARRAY[:token], ARRAY[$1])'),
	('SELECT idemq.commit_once(:other, $1)'),
	('SELECT idemq.fail(:id, :token, $1::text)'),
	('SELECT idemq.fail(:id, :token, details => $1)'),
	('SELECT idemq.fail_many(ARRAY[:id], ARRAY[:token], ARRAY[$1::text])'),
	('SELECT idemq.fail_many(ARRAY[:id], ARRAY[:token], details => ARRAY[$1])')) c (command);
SELECT status, attempt, payload, headers, checkpoint, result, last_error FROM idemq.jobs ORDER BY id;

-- The hint names the setting.
\set VERBOSITY default
SELECT idemq.enqueue('q', document) FROM long;
\set VERBOSITY sqlstate
