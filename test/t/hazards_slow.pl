# Indexes that are rebuilt, rows that are moved and columns that come and go, many times, while everybody works.
# slow: the more rounds, the more places the workers are met at
# at least 12 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use Rebuilds;
use Test::More;

my $node = new_server('hazards_slow', autovacuum_naptime => '1s');

sql($node, 'DROP INDEX idemq.jobs_ready;
	CREATE INDEX another ON idemq.jobs (queue_id, priority, ready_at, id) WHERE ready_at IS NOT NULL');
prepare_work($node);
work_while($node, 'indexes rebuilt', 12,
	'REINDEX INDEX CONCURRENTLY idemq.another', 'REINDEX INDEX CONCURRENTLY idemq.jobs_pkey',
	'VACUUM idemq.jobs', 'REINDEX TABLE CONCURRENTLY idemq.jobs',
	'CREATE INDEX CONCURRENTLY extra ON idemq.jobs (status, id)', 'ANALYZE idemq.jobs',
	'DROP INDEX CONCURRENTLY idemq.extra', 'VACUUM FULL idemq.jobs', 'REINDEX INDEX idemq.another');
work_while($node, 'columns come and go', 12, 'ALTER TABLE idemq.jobs ADD COLUMN extra int',
	'CREATE INDEX CONCURRENTLY extra ON idemq.jobs ((attempt + 1))',
	'CREATE TRIGGER noop AFTER UPDATE ON idemq.jobs FOR EACH ROW EXECUTE FUNCTION noop()',
	'REINDEX TABLE CONCURRENTLY idemq.jobs', 'DROP TRIGGER noop ON idemq.jobs',
	'DROP INDEX idemq.extra', 'ALTER TABLE idemq.jobs DROP COLUMN extra');
if ($node->pg_version->major >= 19)
{
	work_while($node, 'repacked', 12, 'REPACK (CONCURRENTLY) idemq.jobs', 'ANALYZE idemq.jobs',
		'REPACK (CONCURRENTLY) idemq.jobs USING INDEX jobs_pkey', 'REPACK idemq.jobs',
		'REPACK (CONCURRENTLY) idemq.queues', 'REPACK (CONCURRENTLY) idemq.attempts');
}

$node->stop;
done_testing();
