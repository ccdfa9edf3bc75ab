# A restore table by table, in any order (pg_restore -j), beside sessions that claim and a worker
# that looks: what memory learns in between must not be what it goes by afterwards.  After it every
# job comes to its end.
#
#   RESTORE_ORDERS=n  orders with each server (6); the first ones are always the same
#   RESTORE_SEED=n    of the others

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use List::Util qw(shuffle);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes;

my $seed = $ENV{RESTORE_SEED} // time;
my $orders = $ENV{RESTORE_ORDERS} // 6;
my @tables = qw(queues jobs dependencies children steps events attempts);
my $queues = q{ARRAY['plain', 'parents', 'children', 'fifo', 'places', 'paced', 'limited', 'told']};

note "RESTORE_SEED=$seed";
srand $seed;

my $without = new_server('without');
my $with = new_server('with', 'idemq.worker' => 'on');

# ---- Something of all that one table's rows say about another's

sql($without, q{
	CREATE FUNCTION parent(p text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.enqueue('parents', to_jsonb(p), key => p) $$;
	CREATE FUNCTION child(p text, parents text[], failure text DEFAULT 'cancel', g text DEFAULT NULL) RETURNS bigint LANGUAGE sql AS $$
		SELECT id FROM idemq.enqueue('children', to_jsonb(p), key => p, group_key => g, on_parent_failure => failure, depends_on =>
			(SELECT array_agg(id) FROM idemq.jobs WHERE key = ANY (parents))) $$;
	SELECT idemq.create_queue('plain', lease => '1 h'), idemq.create_queue('parents', lease => '1 h', max_attempts => 1),
		idemq.create_queue('children', lease => '1 h'), idemq.create_queue('fifo', lease => '1 h'),
		idemq.create_queue('places', lease => '1 h', group_running => 2),
		idemq.create_queue('paced', lease => '1 h', group_rate => 10, group_period => '1 s'),
		idemq.create_queue('limited', lease => '1 h', max_running => 2), idemq.create_queue('told', lease => '1 h');
	SELECT idemq.enqueue('plain', to_jsonb(n), delay => make_interval(secs => n % 3), priority => n % 2) FROM generate_series(1, 10) n;
	SELECT idemq.enqueue(q, to_jsonb(n), group_key => 'g' || n % 2) FROM unnest('{fifo,places,paced}'::text[]) q, generate_series(1, 10) n;
	SELECT idemq.enqueue('limited', to_jsonb(n)) FROM generate_series(1, 6) n;
	SELECT count(parent(n)) FROM unnest('{fails,works,done,bare,first,last}'::text[]) n;
	SELECT child('cancelled', '{fails,works}'), child('run', '{fails,works}', 'run'), child('wait', '{fails,works}', 'wait'),
		child('one', '{works}'), child('done', '{done,works}'), child('grouped', '{works}', g => 'g'), child('behind', '{first,last}', g => 'g');
	SELECT child('grandchild', '{one,behind}');
	SELECT idemq.commit_once(id) FROM idemq.jobs WHERE key = 'done';
	SELECT idemq.enqueue('told', to_jsonb(n)) FROM generate_series(1, 3) n;
	SELECT idemq.send_event('told', 'early');
	SELECT idemq.await_event(id, token, CASE payload WHEN '1' THEN 'early' ELSE 'late' END, '1 h') FROM idemq.claim('told', 3);
});
# In flight: their ends come after the restore.
sql($without, "CREATE TABLE held AS SELECT id, token FROM idemq.claim_any(ARRAY['fifo', 'places', 'paced', 'limited'], 12)
	UNION ALL SELECT id, token FROM idemq.jobs WHERE status = 'processing'");
is_sql($without, 'SELECT count(*) FROM held', 2 + 4 + 2 + 2 + 1, 'jobs are in flight');
my $dump = "$PostgreSQL::Test::Utils::tmp_check/dump";
command_ok([ 'pg_dump', '-Fc', '-f', $dump, $without->connstr('postgres') ], 'a dump');

# What others do between two tables: it leaves no row behind, but all that they have learned.
my $look = qq{
	BEGIN; SELECT count(*) FROM idemq.claim_any($queues, 100); ROLLBACK;
	CALL idemq.wait('plain', '0'); SELECT count(*) FROM idemq.metrics; CALL idemq.tick(); SELECT idemq.reap(name) FROM idemq.queues;
};

# Ends what is held, sends what is awaited, and works until nothing is left; answers what is, should that take too long.
sub work_it_off
{
	my ($node, $db) = @_;
	my $end = time + 60;
	my $left;

	sql($node, "SELECT idemq.commit(id, token) FROM held; SELECT idemq.send_event('told', 'late')", $db);
	do
	{
		sql($node, qq{SELECT CASE WHEN payload = '"fails"' THEN idemq.fail(id, token, 'no') ELSE idemq.commit(id, token) END FROM idemq.claim_any($queues, 100)}, $db);
		$left = sql($node, q{SELECT id, status, payload, idemq.why(id) FROM idemq.jobs WHERE finished_at IS NULL AND payload <> '"wait"' ORDER BY 1}, $db);
	} while ($left ne '' && time < $end);
	return $left;
}

sub try_order
{
	my ($node, $db, @order) = @_;
	my @to = ('-d', $node->connstr($db), $dump);
	my $try = $node->name . " worker, @order";

	sql($node, "CREATE DATABASE $db");
	system_or_bail('pg_restore', '--section=pre-data', @to);
	foreach my $table (@order)
	{
		system_or_bail('pg_restore', '--data-only', '-n', 'idemq', '-t', $table, @to);
		$node->psql($db, $look);
		Time::HiRes::sleep(rand 0.03) if $node == $with;
	}
	system_or_bail('pg_restore', '--data-only', '-t', 'held', @to);
	system_or_bail('pg_restore', '--section=post-data', @to);
	is(work_it_off($node, $db), '', "$try: every job ends");
	is_sql($node, q{SELECT key, status FROM idemq.jobs WHERE key IN ('cancelled', 'run', 'wait', 'grandchild') ORDER BY 1},
		"cancelled|cancelled\ngrandchild|completed\nrun|completed\nwait|blocked", "$try: each as its parents say", $db);
	is_sql($node, q{SELECT * FROM idemq.check() WHERE severity = 'error'}, '', "$try: check() is clean", $db);
	sql($node, "DROP DATABASE $db WITH (FORCE)");
	return;
}

# Jobs last, first, and before their queues; then any.
my @first = ([qw(queues dependencies children steps events attempts jobs)], [qw(jobs children dependencies steps events attempts queues)],
	[qw(queues dependencies jobs children steps events attempts)], [ reverse @tables ]);
foreach my $n (0 .. $orders - 1)
{
	my @order = $n < @first ? @{ $first[$n] } : shuffle(@tables);

	try_order($_, "copy$n", @order) foreach $without, $with;
}
is(unexpected($with, 'workers'), '', 'no error of the worker');

done_testing();
