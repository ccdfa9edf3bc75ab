# Flows that grow, with the background worker: an added parent is waited for after a look that has seen an earlier end of
# the running job, after PREPARE TRANSACTION, after a crash, and not when the transaction that added it was killed.
# stops: idemq_dependency_watch looks_are_over
# at least 31 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_server('add_parents', 'idemq.worker' => 'on', max_prepared_transactions => 4);

sql($node, q{
	SELECT idemq.create_queue('jobs', lease => '1 h', max_attempts => 1), idemq.create_queue('sums', lease => '1 h');
	CREATE FUNCTION add(p text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.enqueue('jobs', to_jsonb(p), key => p) $$;
	CREATE FUNCTION id_of(p text) RETURNS bigint LANGUAGE sql AS $$ SELECT id FROM idemq.jobs WHERE key = p $$;
	CREATE FUNCTION child(p text, VARIADIC parents text[]) RETURNS bigint LANGUAGE sql AS $$
		SELECT id FROM idemq.enqueue('sums', to_jsonb(p), key => p, depends_on => (SELECT array_agg(id_of(x)) FROM unnest(parents) x)) $$;
	CREATE FUNCTION take(p text) RETURNS idemq.outcome LANGUAGE sql AS $$ SELECT outcome FROM idemq.claim_job(id_of(p)) $$;
	CREATE FUNCTION done(p text) RETURNS text LANGUAGE sql AS $$ SELECT idemq.commit(id, token) FROM idemq.jobs WHERE key = p $$;
	CREATE FUNCTION grow(p text, child text, VARIADIC parents text[]) RETURNS text LANGUAGE sql AS $$
		SELECT string_agg(a.outcome::text, ' ') FROM idemq.jobs j, idemq.add_parents(id_of(child), ARRAY(SELECT id_of(x) FROM unnest(parents) x), j.id, j.token) a
		WHERE j.key = p $$;
	CREATE FUNCTION status(p text) RETURNS text LANGUAGE sql AS $$ SELECT status FROM idemq.jobs WHERE key = p $$;
});

sub status_soon
{
	my ($key, $status, $name) = @_;

	is_soon($node, "SELECT status('$key')", $status, $name);
}

# A list that runs, its child, and two pages.
sub flow
{
	my $of = shift;

	sql($node, "SELECT add('$of list'); SELECT child('$of sum', '$of list'); SELECT take('$of list'), add('$of a'), add('$of b')");
}

# ---- Ready by the worker, right after the last page

flow('plain');
sql($node, "BEGIN; SELECT grow('plain list', 'plain sum', 'plain a', 'plain b'); SELECT done('plain list'); COMMIT");
is_soon($node, "SELECT waits_for = id_of('plain a') FROM idemq.children WHERE job_id = id_of('plain sum')", 't', 'the list is done: the sum waits for the first page');
my $waiter = waiter($node, "CALL idemq.wait('sums', '1 h')");
sql($node, "SELECT take('plain b'); SELECT done('plain b')");
is_sql($node, "SELECT status('plain sum')", 'blocked', 'one page is done');
sql($node, "SELECT take('plain a'); SELECT done('plain a')");
is(answer($waiter), 't', 'so is the other one: who waits for the queue is woken');
is_sql($node, "SELECT payload FROM idemq.claim('sums')", '"plain sum"', 'and claims the sum');

# ---- A look has seen an earlier end of the list, and is about to move the watch beyond the page

sql($node, "SELECT add('list'); SELECT add('page'); SELECT add('other'); SELECT child('sum', 'list', 'other'); SELECT take('list')");
is_soon($node, "SELECT waits_for = id_of('list') FROM idemq.children WHERE job_id = id_of('sum')", 't', 'the sum watches the list');
my $stop = stop_at(worker_pid($node), 'idemq_dependency_watch');
sql($node, "SELECT done('list')");
$stop->();
sql($node, "SELECT idemq.enqueue('jobs', '\"list\"', key => 'list', on_duplicate => 'rerun')");
is_sql($node, "SELECT take('list')", 'claimed', 'the list runs again');
is_sql($node, "SELECT grow('list', 'sum', 'page')", 'locked', 'the look may pass the list: nothing is added');
$stop->();
is_soon($node, "SELECT waits_for = id_of('other') FROM idemq.children WHERE job_id = id_of('sum')", 't', 'it has passed the list');
is_state($node, "SELECT grow('list', 'sum', 'page')", '55000', 'the sum waits for the list no more');
sql($node, "SELECT take('other'); SELECT done('other')");
status_soon('sum', 'pending', 'the sum has waited for those two alone');
is_sql($node, "SELECT count(*) FROM idemq.dependencies WHERE child = id_of('sum')", 2, 'and has no other parents');

# The same for a list that has lost its key since: it died, another job got the key, and the list was brought back.
sql($node, q{SELECT add('lost list'), add('lost page'), add('lost other');
	SELECT idemq.enqueue('sums', '1', key => 'lost sum', depends_on => ARRAY[id_of('lost list'), id_of('lost other')], on_parent_failure => 'wait');
	SELECT take('lost list')});
my $list = sql($node, "SELECT id_of('lost list')");
is_soon($node, "SELECT waits_for FROM idemq.children WHERE job_id = id_of('lost sum')", $list, 'a patient sum watches its list');
$stop = stop_at(worker_pid($node), 'idemq_dependency_watch');
sql($node, "SELECT done('lost list')");
$stop->();
sql($node, qq{SELECT idemq.enqueue('jobs', '1', key => 'lost list', on_duplicate => 'rerun', key_ttl => '1 us');
	SELECT take('lost list');
	SELECT idemq.fail(id, token, 'no') FROM idemq.jobs WHERE id = $list;
	SELECT idemq.enqueue('jobs', '1', key => 'lost list', delay => '1 h');
	SELECT idemq.retry($list)});
is_sql($node, "SELECT outcome, (SELECT key FROM idemq.jobs WHERE id = $list) FROM idemq.claim_job($list)", 'claimed|', 'the list runs again, without its key');
is_sql($node, "SELECT a.outcome FROM idemq.jobs j, idemq.add_parents(id_of('lost sum'), ARRAY[id_of('lost page')], j.id, j.token) a WHERE j.id = $list",
	'locked', 'the look may pass this list too');
$stop->();
is_soon($node, "SELECT waits_for = id_of('lost other') FROM idemq.children WHERE job_id = id_of('lost sum')", 't', 'it has passed it');

# ---- A look that ends meanwhile is waited for

sql($node, q{SELECT add('early'); SELECT add('late'); SELECT add('late page');
	SELECT idemq.enqueue('sums', '1', key => 'late sum', depends_on => ARRAY[id_of('early'), id_of('late')], on_parent_failure => 'run');
	SELECT take('early'), take('late')});
is_soon($node, "SELECT waits_for = id_of('early') FROM idemq.children WHERE job_id = id_of('late sum')", 't', 'the sum watches the first parent');
$stop = stop_at(worker_pid($node), 'idemq_dependency_watch');
sql($node, "SELECT done('early')");
$stop->();
my $adder = session($node);
my $asks = stop_at($adder->{backend}, 'looks_are_over');
$adder->query_until(qr/sent/, "\\echo sent\nSELECT grow('late', 'late sum', 'late page');\n");
$asks->();
$stop->();
is_soon($node, "SELECT waits_for = id_of('late') FROM idemq.children WHERE job_id = id_of('late sum')", 't', 'the look has ended');
$asks->();
is(answer({ session => $adder }), 'added', 'and the page is added');
leave($adder);

# ---- A page that fails after it was checked, and before it is visible as a parent

flow('failing');
my $session = session($node);
$session->query("BEGIN; SELECT grow('failing list', 'failing sum', 'failing a')");
sql($node, "SELECT idemq.cancel(id_of('failing a'))");
is_sql($node, "SELECT status('failing sum')", 'blocked', 'the end of the page leads to no child');
$session->query('COMMIT');
leave($session);
status_soon('failing sum', 'cancelled', 'the commit does, though the list still runs');

# ---- A prepared transaction

flow('prepared');
sql($node, "BEGIN; SELECT grow('prepared list', 'prepared sum', 'prepared a'); PREPARE TRANSACTION 'grow'");
is_sql($node, "SELECT outcome FROM idemq.add_parents(id_of('prepared sum'), ARRAY[id_of('prepared a')], id_of('prepared list'), (SELECT token FROM idemq.jobs WHERE key = 'prepared list'))",
	'locked', 'the row of the same parent is in doubt');
sql($node, "SELECT idemq.cancel(id_of('prepared a'))");
sql($node, "COMMIT PREPARED 'grow'");
status_soon('prepared sum', 'cancelled', 'its page was cancelled before: so is the sum');
flow('undone');
sql($node, "BEGIN; SELECT grow('undone list', 'undone sum', 'undone a'); PREPARE TRANSACTION 'grow'");
sql($node, "ROLLBACK PREPARED 'grow'");
sql($node, "SELECT done('undone list')");
status_soon('undone sum', 'pending', 'ROLLBACK PREPARED: the sum does not wait for the page');

# ---- A session that is killed, and a crash

flow('killed');
flow('crash');
$session = session($node);
$session->query("BEGIN; SELECT grow('killed list', 'killed sum', 'killed a'); SELECT done('killed list')");
sql($node, "SELECT pg_terminate_backend($session->{backend})");
is_soon($node, "SELECT count(*) FROM pg_stat_activity WHERE pid = $session->{backend}", 0, 'the session has ended');
leave($session);
is_sql($node, "SELECT status('killed list'), grow('killed list', 'killed sum', 'killed b')", 'running|added', 'the list runs, and what the session has added is gone');
is_sql($node, "SELECT grow('crash list', 'crash sum', 'crash a', 'crash b')", 'added added', 'two pages are added');
crash($node);
sql($node, "SELECT done('killed list'); SELECT done('crash list')");
is_soon($node, "SELECT string_agg(key, ', ' ORDER BY key) FROM idemq.children c JOIN idemq.jobs j ON j.id = c.waits_for WHERE key ~ 'killed|crash'", 'crash a, killed b', 'each waits for its page');
sql($node, "SELECT take(p) FROM unnest('{crash a,crash b,killed b}'::text[]) p; SELECT done(p) FROM unnest('{crash a,crash b,killed b}'::text[]) p");
status_soon($_, 'pending', "$_: its pages are done") foreach 'crash sum', 'killed sum';
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean');
# The library as it ships, without stop points.
shipped($node);
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check() is clean with the shipped library');

$node->stop;
done_testing();
