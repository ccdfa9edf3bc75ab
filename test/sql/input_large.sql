-- Large input, which goes in and comes out, or is refused.
-- slow: keys of 100 MB, documents of 15 MB
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, lease => '1 h');

-- A key of 100 MB, for every function that takes one.
CREATE FUNCTION answer(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command USING repeat('x', 100000000);
	RETURN 'accepted';
EXCEPTION WHEN OTHERS THEN
	RETURN SQLSTATE || ' ' || left(SQLERRM, 60);
END $$;
SELECT command, answer('SELECT idemq.' || command) FROM unnest(ARRAY['acquire(''q'', $1, ''1'')', 'cancel_by_key(''q'', $1)', 'enqueue(''q'', ''1'', key => $1)',
	'job_by_key(''q'', $1)', 'once(''s'', $1)', 'publish(''order'', ''1'', key => $1)']) command;
SELECT count(*) FROM idemq.jobs;

-- 15 MB of jsonb by enqueue and claim; 3 MB that do not compress, in every column.
CREATE FUNCTION large() RETURNS jsonb LANGUAGE sql AS $$ SELECT jsonb_build_object('data', repeat(md5('x'), 491520)) $$;
SELECT (idemq.enqueue('q', large())).id \gset
SELECT md5(payload::text) = md5('{"data": "' || repeat(md5('x'), 491520) || '"}') AS the_same, token FROM idemq.claim('q') \gset
SELECT :'the_same' AS the_same, idemq.commit(:id, :token, '"done"');
SELECT status, result, length(payload ->> 'data') FROM idemq.job(:id);
CREATE TABLE medium AS SELECT jsonb_build_object('data', string_agg(md5(i::text), '')) AS payload FROM generate_series(1, 100000) i;
SELECT (idemq.enqueue('q', payload, headers => payload)).id FROM medium \gset
SELECT c.payload = m.payload AS payload, c.headers = m.payload AS headers, c.token FROM idemq.claim('q') c, medium m \gset
SELECT :'payload' AS payload, :'headers' AS headers, idemq.checkpoint(:id, :token, payload) FROM medium;
SELECT idemq.release(:id, :token);
SELECT checkpoint = m.payload AS the_same, token FROM idemq.claim('q'), medium m \gset
SELECT :'the_same' AS the_same, idemq.commit(:id, :token, payload) FROM medium;
SELECT status, j.payload = m.payload AS payload, headers = m.payload AS headers, checkpoint = m.payload AS checkpoint, result = m.payload AS result
FROM idemq.job(:id) j, medium m;
SELECT (idemq.enqueue('q', '1', key => 'k')).id \gset
SELECT idemq.commit_once(:id, payload) FROM medium;
SELECT outcome, result = payload AS the_same FROM idemq.enqueue('q', '1', key => 'k'), medium;
SELECT outcome, result = m.payload AS the_same FROM idemq.claim_job(:id), medium m;
SELECT idemq.purge('q');
