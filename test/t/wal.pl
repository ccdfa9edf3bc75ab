# What a claim writes: one HOT update per job, no row lock, no index entry.
# at least 27 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

# Without logical decoding WAL has only what differs between two versions of a row.
my $node = new_server('wal', autovacuum => 'off', wal_level => 'replica');
my $claim = "$PostgreSQL::Test::Utils::tmp_check/claim.sql";
my $batch = "$PostgreSQL::Test::Utils::tmp_check/batch.sql";

append_to_file($claim, "SELECT * FROM idemq.claim('q');\n");
append_to_file($batch, "SELECT count(*) FROM idemq.claim('q', 100);\n");

sub pgbench
{
	my ($script, $transactions) = @_;

	run_log([ 'pgbench', '-n', '-p', $node->port, '-h', $node->host, '-c', 1, '-t', $transactions,
			'-f', $script, 'postgres' ])
	  or die "pgbench failed";
}

# Jobs to claim, on pages that nobody has changed since the last checkpoint.
sub prepare
{
	my ($jobs, $payload) = @_;

	sql($node, "SELECT idemq.drop_queue('q', force => true);
		SELECT idemq.create_queue('q', lease => '1 h');
		SELECT count(*) FROM idemq.enqueue_many('q', array_fill($payload, ARRAY[$jobs + 1]));
		SELECT count(*) FROM idemq.claim('q')");
	sql($node, 'VACUUM (FREEZE, ANALYZE) idemq.jobs');
	sql($node, 'CHECKPOINT');
}

sub check
{
	my ($records, $jobs, $name) = @_;
	my @indexes = grep { m{^Btree/} } keys %$records;

	note explain $records;
	is($records->{'Heap/HOT_UPDATE'}, $jobs, "$name: a HOT update a job");
	is($records->{'Heap/UPDATE'} // 0, 0, "$name: no other update");
	is($records->{'Heap/LOCK'} // 0, 0, "$name: no row lock");
	is_deeply(\@indexes, [], "$name: no index entry");
	is_sql($node, "SELECT count(*) FROM idemq.jobs WHERE status = 'running'", $jobs + 1,
		"$name: all are claimed");
}

prepare(1000, "'1'::jsonb");
check(wal_records($node, sub { pgbench($claim, 1000) }), 1000, '1,000 claims of one');
is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, 'nothing is left');

prepare(1000, "to_jsonb(repeat('x', 100))");
check(wal_records($node, sub { pgbench($claim, 1000) }), 1000, '1,000 claims of one, larger payload');

# What a claim, and then its commit, writes into the heap, in bytes.  WAL leaves out what two versions of a row have in
# common at their ends.  The worker's name and the result stand where the older version has something else, so that this
# does not depend on the times in front of them.
sub claim_and_commit
{
	my ($attach) = @_;
	my $session = session($node);
	my $job;

	my $claimed = wal_bytes($node, sub {
			$job = $session->query_safe("SELECT id || ', ' || token FROM idemq.claim('q', worker => 'w', attach => $attach)") });
	my $committed = wal_bytes($node, sub { $session->query_safe("SELECT idemq.commit($job, '1')") });
	leave($session);
	return map { ($_->{'Heap/HOT_UPDATE'} // 0) + ($_->{'Heap/UPDATE'} // 0) } $claimed, $committed;
}

# Without a flag that changes, nothing in front of the status does; a flag costs the 4 bytes between itself and the status.
prepare(9, "'1'::jsonb");
claim_and_commit('false'); # after it the page is not logged as a whole any more
my ($claimed, $committed) = claim_and_commit('false');
is_deeply([ claim_and_commit('true') ], [ $claimed + 4, $committed + 4 ], 'an attached claim and its commit: 4 bytes more');
is_deeply([ claim_and_commit('false') ], [ $claimed, $committed ], 'the next one that is not attached: as before');
# The row of a job that waits, with a payload of 1: a header of 32 bytes, whose bitmap has room for two columns more; 56 bytes
# to ready_at; the payload.
is_sql($node, "SELECT DISTINCT pg_column_size(j) - pg_column_size(payload), pg_column_size(payload) FROM idemq.jobs j WHERE status = 'pending'", '88|17',
	'flags cost no space: they are where the status would be aligned');

prepare(1000, "'1'::jsonb");
check(wal_records($node, sub { pgbench($batch, 10) }), 1000, '10 claims of 100');

# A commit: one update, and an entry in each of two indexes; a heartbeat: nothing.  Every tenth job is committed, so that
# pages have room.  The jobs are counted, because their ids depend on who else has taken ids.
my $records = wal_records($node, sub {
		sql($node, "SELECT count(*)
			FROM (SELECT id, token, row_number() OVER (ORDER BY id) AS n FROM idemq.jobs WHERE status = 'running') j,
				idemq.commit(j.id, j.token)
			WHERE n % 10 = 0") });
note explain $records;
is(($records->{'Heap/UPDATE'} // 0) + ($records->{'Heap/HOT_UPDATE'} // 0), 100,
	'a commit: one update a job');
is($records->{'Heap/LOCK'} // 0, 0, 'a commit: no row lock');
is($records->{'Transaction/COMMIT'}, 1, 'a batch: one transaction');

# Answers that refuse write nothing.
sub writes_nothing
{
	my ($name, @statements) = @_;

	my $written = wal_records($node, sub { sql($node, $_) foreach @statements });
	# Any read may prune a page.
	delete $written->{$_}
	  foreach grep { m{^(XLOG|Standby|LogicalMessage|Heap2)/} } keys %$written;
	is_deeply($written, {}, "$name: no WAL");
}

my $held = sql($node, "SELECT min(id) FROM idemq.jobs WHERE status = 'running'");
my $done = sql($node, "SELECT min(id) FROM idemq.jobs WHERE status = 'completed'");
my $claims = session($node);
my $stranger = session($node);

writes_nothing('locked, done, nothing ready', "SELECT idemq.claim_job($held)",
	"SELECT idemq.commit_once($held)", "SELECT idemq.claim_job($done)",
	"SELECT idemq.commit_once($done)", "SELECT * FROM idemq.claim('q', 100)",
	"SELECT idemq.try_commit($held, 1)", "SELECT idemq.fail($held, 1)",
	"SELECT idemq.heartbeat(id, token) FROM idemq.jobs WHERE id = $held",
	"SELECT idemq.validate(id, token) FROM idemq.jobs WHERE id = $held");

my $new = sql($node, "SELECT id FROM idemq.enqueue('q', '1')");
$claims->query_safe("BEGIN; SELECT * FROM idemq.claim_job($new)");
writes_nothing('locked by an open claim', "SELECT idemq.claim_job($new)",
	"SELECT idemq.commit_once($new)", "SELECT * FROM idemq.claim('q', 100)");
is_sql($node, "SELECT outcome FROM idemq.claim_job($new)", 'locked', 'locked by an open claim');
$claims->query_safe('ROLLBACK');

$stranger->query_safe("BEGIN; SELECT id FROM idemq.jobs WHERE id = $new FOR SHARE");
writes_nothing('locked by a stranger', "SELECT idemq.claim_job($new)",
	"SELECT idemq.commit_once($new)", "SELECT * FROM idemq.claim('q', 100)");
is_sql($node, "SELECT outcome FROM idemq.claim_job($new)", 'locked', 'locked by a stranger');
$stranger->query_safe('ROLLBACK');

leave($claims, $stranger);
$node->stop;
done_testing();
