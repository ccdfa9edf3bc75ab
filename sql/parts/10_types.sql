CREATE TYPE idemq.status AS ENUM (
	'blocked', 'pending', 'processing', 'failed', 'completed', 'dead', 'cancelled');
COMMENT ON TYPE idemq.status IS 'where a job stands; only transitions of src/job/transition.c change it';

CREATE TYPE idemq.outcome AS ENUM (
	'accepted', 'duplicate',
	'claimed', 'claimed_again', 'locked', 'completed', 'dead', 'cancelled',
	'blocked', 'not_due', 'not_found',
	'committed', 'already_committed', 'stale',
	'current', 'expired', 'retrying', 'released');
COMMENT ON TYPE idemq.outcome IS 'what a call did, or why it did nothing';
