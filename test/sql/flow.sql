-- idemq.flow: how far a graph or a fan-out is, whichever of its jobs is given.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -
SELECT idemq.create_queue('q', retry_jitter => 0, retry_base => '1 h', lease => '1 h', max_attempts => 2) AS q \gset
SELECT idemq.create_queue('other', lease => '1 h') AS other \gset
SELECT idemq.create_queue('short', lease => '1 h', retention => '0') AS short \gset

CREATE FUNCTION counts(id bigint) RETURNS text LANGUAGE sql AS $$
	SELECT format('%s jobs: %s waiting, %s blocked, %s running, %s retrying, %s completed, %s dead, %s cancelled; %s done, %s %%',
		jobs, waiting, blocked, running, retrying, completed, dead, cancelled, done, progress) FROM idemq.flow($1) $$;

-- A job alone is a flow of one; one that is not there is none.
SELECT id AS lone FROM idemq.enqueue('q', '0') \gset
SELECT counts(:lone);
SELECT begun_at, ended_at, eta, held_up_by = :lone AS held_by_itself, slowest, failed_ids, roots = ARRAY[:lone] AS roots, cut FROM idemq.flow(:lone);
SELECT depth, parents, status FROM idemq.flow_jobs(:lone);
SELECT count(*) FROM idemq.flow(1);
SELECT count(*) FROM idemq.flow_jobs(1);
SELECT idemq.flow_ids(1);
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT counts(:lone);
SELECT ended_at = finished_at AS ended, eta, held_up_by, slowest = :lone AS slowest, slowest_for = finished_at - claimed_at AS lasted
	FROM idemq.flow(:lone), idemq.job(:lone);

-- list -> four parts -> sum, which is of another queue; and one that has nothing to do with it.
SELECT count(*) FROM idemq.enqueue('q', '"stranger"');
SELECT id AS list FROM idemq.enqueue('q', '"list"', kind => 'list', priority => 0) \gset
SELECT array_agg(id ORDER BY id) AS parts FROM idemq.enqueue_many('q', '{1,2,3,4}', depends_on => ARRAY[:list], on_parent_failure => 'wait') \gset
SELECT id AS sum FROM idemq.enqueue('other', '"sum"', depends_on => :'parts', on_parent_failure => 'wait') \gset
SELECT DISTINCT counts(id) FROM unnest(ARRAY[:list, :sum] || :'parts') id;
SELECT DISTINCT held_up_by = :list AS by_list, roots = ARRAY[:list] AS roots FROM unnest(ARRAY[:list, :sum] || :'parts') id, idemq.flow(id);
SELECT id - :list AS id, queue, kind, status, ARRAY(SELECT p - :list FROM unnest(parents) p) AS parents, depth FROM idemq.flow_jobs(:sum);
SELECT array_agg(f ORDER BY f) = ARRAY[:list] || :'parts' || :sum::bigint AS all_of_it FROM idemq.flow_ids((:'parts'::bigint[])[2]) f;
SELECT id, token FROM idemq.claim('q') \gset list_
SELECT counts(:sum);
SELECT slowest = :list AS slowest, slowest_kind, begun_at IS NOT NULL AS has_begun FROM idemq.flow(:sum);
SELECT idemq.commit(:list_id, :list_token);
SELECT count(*) FROM idemq.claim('q', 5) c WHERE c.payload = '"stranger"';
SELECT counts(:list);
-- One part is done, one fails, one dies, one goes on.
SELECT idemq.commit(id, token) FROM idemq.job((:'parts'::bigint[])[1]);
SELECT idemq.fail(id, token, 'later') FROM idemq.job((:'parts'::bigint[])[2]);
SELECT idemq.fail(id, token, 'never', permanent => true) FROM idemq.job((:'parts'::bigint[])[3]);
SELECT counts(:list);
-- It waits for the first that is not done; that will be tried again: an estimate can be made.
SELECT held_up_by = (:'parts'::bigint[])[2] AS by_second, held_up_why ~ 'not due before' AS says_why, eta > '0' AS eta,
	failed_ids = ARRAY[(:'parts'::bigint[])[3], (:'parts'::bigint[])[2]] AS failed FROM idemq.flow(:list);
SELECT idemq.commit(id, token) FROM idemq.job((:'parts'::bigint[])[4]);
SELECT idemq.retry((:'parts'::bigint[])[2]);
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT count(*) FROM idemq.claim('other');
-- A dead one is all that is waited for: there is no estimate.
SELECT held_up_by = (:'parts'::bigint[])[3] AS by_third, held_up_why ~ '^dead since' AS says_why, eta, ended_at FROM idemq.flow(:sum);
SELECT count(*) FILTER (WHERE last_error = 'never') AS never FROM idemq.flow_jobs(:sum);
SELECT counts(:sum);
SELECT idemq.retry((:'parts'::bigint[])[3]);
SELECT idemq.commit(id, token) FROM idemq.claim('q');
SELECT idemq.commit(id, token) FROM idemq.claim('other');
SELECT counts(:list);
SELECT ended_at = (SELECT finished_at FROM idemq.job(:sum)) AS ended, eta, held_up_by FROM idemq.flow(:list);

-- No more than so many, the nearest first.
SELECT counts(:sum), (SELECT cut FROM idemq.flow(:sum)), f.jobs, f.cut FROM idemq.flow(:sum, 5) f;
SELECT f.jobs, f.cut FROM idemq.flow(:sum, 6) f;
SELECT count(*) FROM idemq.flow_jobs(:list, 5);
SELECT jobs, cut FROM idemq.flow(:sum, 0);

-- Parents whose rows are gone count as what their child is told, and are named.
SELECT array_agg(id) AS gone FROM idemq.enqueue_many('short', '{1,2}') \gset
SELECT id AS child FROM idemq.enqueue('q', '"child"', depends_on => :'gone') \gset
SELECT count(idemq.commit(id, token)) FROM idemq.claim('short', 2);
SELECT counts(:child);
DELETE FROM idemq.jobs WHERE id = ANY (:'gone');
SELECT counts(:child);
SELECT cardinality(parents) AS parents, depth FROM idemq.flow_jobs(:child);

-- All of it is cancelled, with what cancel_many says of each.
SELECT id AS a FROM idemq.enqueue('q', '"a"') \gset
SELECT id AS b FROM idemq.enqueue('q', '"b"', depends_on => ARRAY[:a], on_parent_failure => 'wait') \gset
SELECT outcome FROM idemq.cancel_many(ARRAY(SELECT idemq.flow_ids(:b)));
SELECT counts(:a);

-- Two graphs that share a job are one; a diamond's depth is that of its longest way.
SELECT id AS top FROM idemq.enqueue('q', '1') \gset
SELECT id AS left FROM idemq.enqueue('q', '2', depends_on => ARRAY[:top]) \gset
SELECT id AS low FROM idemq.enqueue('q', '3', depends_on => ARRAY[:left]) \gset
SELECT id AS end FROM idemq.enqueue('q', '4', depends_on => ARRAY[:top, :low]) \gset
SELECT id - :top AS id, depth FROM idemq.flow_jobs(:end);
SELECT most, (SELECT count(*) FROM idemq.flow_ids(:end, most)) AS ids, (SELECT count(*) FROM idemq.flow_jobs(:end, most)) AS rows,
	(SELECT jobs FROM idemq.flow(:end, most)) AS jobs FROM (VALUES (-1), (0), (3), (2147483647), (NULL)) m (most);

-- A role sees what it may see: of a queue of another's, a parent's status that its child is told, and no child.
CREATE ROLE regress_flow LOGIN;
SELECT idemq.grant_queue('other', 'regress_flow', 'claim');
SELECT id AS up FROM idemq.enqueue('q', '"up"') \gset
SELECT id AS mine FROM idemq.enqueue('other', '"mine"', depends_on => ARRAY[:up]) \gset
SELECT id AS down FROM idemq.enqueue('q', '"down"', depends_on => ARRAY[:mine]) \gset
SELECT jobs FROM idemq.flow(:mine);
SET ROLE regress_flow;
SELECT jobs, waiting, blocked, held_up_by = :mine AS by_mine, roots = ARRAY[:up::bigint] AS roots FROM idemq.flow(:mine);
SELECT count(*) FROM idemq.flow(:up);
SELECT id = :mine AS mine FROM idemq.flow_jobs(:mine);
RESET ROLE;
SELECT * FROM idemq.check();
DROP FUNCTION counts(bigint);

DROP EXTENSION idemq;
DROP ROLE regress_flow;
