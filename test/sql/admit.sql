-- idemq.admit: so many calls in a period, from shared memory.
CREATE EXTENSION idemq;
\set VERBOSITY sqlstate
\pset null -

-- All at once up to max_calls; none counts for longer than the period and a sixteenth.
SELECT (a).allowed, (a).remaining, (a).retry_after = '0'::interval AS at_once
FROM (SELECT idemq.admit('api', 3, '1 h') AS a FROM generate_series(1, 3) n OFFSET 0) s;
SELECT allowed, remaining, retry_after BETWEEN '59 min 50 s' AND '63 min 45 s' AS in_an_hour FROM idemq.admit('api', 3, '1 h');
-- A refused call costs nothing; asking does not either.
SELECT allowed, remaining, retry_after BETWEEN '59 min 50 s' AND '63 min 45 s' AS in_an_hour FROM idemq.admit('api', 3, '1 h');
SELECT allowed, remaining FROM idemq.admit('api', 3, '1 h', cost => 0);
SELECT allowed, remaining FROM idemq.admit('other', 3, '1 h', cost => 0);
-- With a burst all of that at once, then exactly one each per / max_calls.
SELECT (a).allowed, (a).remaining FROM (SELECT idemq.admit('bucket', 6, '1 h', burst => 3) AS a FROM generate_series(1, 3) n OFFSET 0) s;
SELECT allowed, remaining, retry_after BETWEEN '9 min 50 s' AND '10 min' AS in_10_min FROM idemq.admit('bucket', 6, '1 h', burst => 3);
SELECT allowed, remaining FROM idemq.admit('spaced', 6, '1 h', burst => 1);
SELECT allowed, remaining, retry_after BETWEEN '9 min 50 s' AND '10 min' AS in_10_min FROM idemq.admit('spaced', 6, '1 h', burst => 1);
-- Another rule for the same bucket: the limit counts as used up.
SELECT allowed FROM idemq.admit('spaced', 6, '1 h');
SELECT allowed FROM idemq.admit('other', 3, '1 h'), idemq.admit('other', 3, '1 h', burst => 3) AS b WHERE NOT b.allowed;
SELECT idemq.admit('spaced', 6, '1 h', burst => 0);
SELECT idemq.admit('spaced', 6, '1 h', burst => -1);
SELECT idemq.admit('spaced', 6, '1 h', cost => 3, burst => 2);
SELECT allowed, remaining FROM idemq.admit('generous', 1, '1 h', cost => 30, burst => 30);
-- Cost.
SELECT allowed, remaining FROM idemq.admit('batch', 10, '1 h', cost => 7);
SELECT allowed, remaining, retry_after BETWEEN '59 min 50 s' AND '63 min 45 s' AS in_an_hour FROM idemq.admit('batch', 10, '1 h', cost => 7);
SELECT allowed, remaining FROM idemq.admit('batch', 10, '1 h', 3);
-- retry_after is exact: a microsecond earlier is refused, then it is allowed.
DO $$
DECLARE
	period interval := '200 ms'; -- meant to expire
	wait interval;
	asked timestamptz;
	twice boolean := true;
BEGIN
	-- Where two calls were further apart than the period, there is nothing to see: once more.
	FOR n IN 1 .. 50 LOOP
		PERFORM idemq.admit('exact ' || n, 1, period);
		wait := (SELECT retry_after FROM idemq.admit('exact ' || n, 1, period) WHERE NOT allowed);
		CONTINUE WHEN wait IS NULL;
		PERFORM pg_sleep_until(clock_timestamp() + wait);
		asked := clock_timestamp();
		IF NOT (SELECT allowed FROM idemq.admit('exact ' || n, 1, period)) THEN
			RAISE 'refused after retry_after';
		END IF;
		twice := (SELECT allowed FROM idemq.admit('exact ' || n, 1, period));
		EXIT WHEN NOT twice OR clock_timestamp() < asked + period;
	END LOOP;
	IF twice THEN
		RAISE 'allowed twice';
	END IF;
END $$;

-- A rollback does not undo it; a read-only transaction may ask.
BEGIN READ ONLY;
SELECT allowed FROM idemq.admit('rolled back', 1, '1 h');
ROLLBACK;
SELECT allowed FROM idemq.admit('rolled back', 1, '1 h');

-- Another limit for the same bucket counts what was called.
SELECT allowed, remaining FROM idemq.admit('api', 6, '1 h');

-- The greatest numbers.
SELECT allowed, remaining FROM idemq.admit('large', 2147483647, '100 years');
SELECT allowed, remaining FROM idemq.admit('large', 2147483647, '1 us', 2147483647);
SELECT allowed, remaining FROM idemq.admit('rare', 1, '100 years');
SELECT allowed, remaining, retry_after > '99 years' AS in_a_century FROM idemq.admit('rare', 1, '100 years');

-- What came of calls is counted, asking is not; a rollback does not undo that either.
SELECT allowed, refused, shared FROM idemq.admissions \gset before_
BEGIN;
SELECT count(*) FILTER (WHERE (a).allowed) FROM (SELECT idemq.admit('counted', 2, '1 h') AS a FROM generate_series(1, 5) OFFSET 0) s;
ROLLBACK;
SELECT allowed FROM idemq.admit('counted', 2, '1 h', cost => 0);
SELECT allowed - :before_allowed AS allowed, refused - :before_refused AS refused, shared - :before_shared AS shared FROM idemq.admissions;

-- Bad arguments.
SELECT idemq.admit(NULL, 1, '1 min');
SELECT idemq.admit('', 1, '1 min');
SELECT idemq.admit(repeat('x', 1025), 1, '1 min');
SELECT idemq.admit('b', NULL, '1 min');
SELECT idemq.admit('b', 0, '1 min');
SELECT idemq.admit('b', 1, NULL);
SELECT idemq.admit('b', 1, '0');
SELECT idemq.admit('b', 1, '-1 s');
SELECT idemq.admit('b', 1, '101 years');
SELECT idemq.admit('b', 1, '1 min', NULL);
SELECT idemq.admit('b', 1, '1 min', -1);
SELECT idemq.admit('b', 1, '1 min', 2);

-- Not for everybody: roles that have it share the buckets.
CREATE ROLE regress_idemq_admit;
SET ROLE regress_idemq_admit;
SELECT idemq.admit('api', 1, '1 min');
RESET ROLE;
GRANT USAGE ON SCHEMA idemq TO regress_idemq_admit;
GRANT EXECUTE ON FUNCTION idemq.admit TO regress_idemq_admit;
SET ROLE regress_idemq_admit;
SELECT allowed FROM idemq.admit('theirs', 1, '1 min');
RESET ROLE;
REVOKE EXECUTE ON FUNCTION idemq.admit FROM regress_idemq_admit;
DROP OWNED BY regress_idemq_admit;
DROP ROLE regress_idemq_admit;
