# No plan depends on when ANALYZE ran: each statement does at most three times the work that it does with fresh statistics,
# when the tables were analyzed after they had been emptied, or never.  Work is the number of rows that the nodes of its plans
# handle, with those that a filter removes, as auto_explain says of it and of all statements inside of it.  What it does with
# fresh statistics has a bound as well, so that it is linear.
# at least 190 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use PostgreSQL::Test::Utils;
use Test::More;

my $n = $ENV{IDEMQ_PLANS} // 300;
my $node = new_server('plans', 'idemq.worker' => 'off', autovacuum => 'off', max_locks_per_transaction => 256, 'idemq.max_queues' => 4096, log_statement => 'none');

plan skip_all => 'no auto_explain' if sqlstate($node, "LOAD 'auto_explain'") ne '00000';

# ---- What there is: of everything that there may be many of, n or a part of it

my $fill = q{
	SET max_stack_depth = '2 MB';
	SELECT count(idemq.create_queue(q)) FROM unnest('{parents,join,fan,waiting,cancelled,dead,letters,running,stepped,finished}'::text[]) q;
	SELECT idemq.create_queue('grouped'), idemq.create_queue('several', group_max_running => 2);
	SELECT count(idemq.alter_queue(q, lease => '1 h', max_attempts => 2)) FROM unnest('{dead,running,stepped,grouped,several}'::text[]) q;
	SELECT idemq.alter_queue('dead', dead_letter_queue => 'letters');
	SELECT count(idemq.create_queue('queue' || i)) FROM generate_series(1, :n / 5) i;
	CREATE TABLE IF NOT EXISTS chosen (what text PRIMARY KEY, id bigint);
	TRUNCATE chosen;
	-- A child of many parents, many children of a parent, and as many that were cancelled with theirs.
	SELECT count(*) FROM idemq.enqueue_many('parents', array_fill('1'::jsonb, ARRAY[:n]));
	INSERT INTO chosen SELECT 'join', id FROM idemq.enqueue('join', '1', depends_on => ARRAY(SELECT id FROM idemq.job_list WHERE queue = 'parents'));
	INSERT INTO chosen SELECT x.what, e.id FROM unnest('{fan,waiting,cancelled}'::text[]) x (what), LATERAL idemq.enqueue('parents', to_jsonb(x.what)) e;
	SELECT count(idemq.enqueue(c.what, to_jsonb(i), depends_on => ARRAY[c.id])) FROM chosen c, generate_series(1, :n) i WHERE what IN ('fan', 'waiting', 'cancelled');
	SELECT idemq.cancel(id) FROM chosen WHERE what = 'cancelled';
	SELECT count(*) FROM idemq.claim('cancelled');
	-- Dead jobs with their attempts and errors.
	SELECT count(*) FROM idemq.enqueue_many('dead', array_fill('1'::jsonb, ARRAY[:n]));
	SELECT count(idemq.fail(id, token, 'error ' || id % 10, '0 s')) FROM idemq.claim('dead', :n);
	SELECT count(idemq.fail(id, token, 'error ' || id % 10, '0 s')) FROM idemq.claim('dead', :n);
	-- Jobs that run, and what they have begun outside.
	SELECT count(*) FROM idemq.enqueue_many('running', array_fill('1'::jsonb, ARRAY[:n]), keys => ARRAY(SELECT 'key' || i FROM generate_series(1, :n) i));
	SELECT count(*) FROM idemq.claim('running', :n);
	SELECT count(*) FROM idemq.enqueue_many('stepped', array_fill('1'::jsonb, ARRAY[:n]));
	CREATE TEMP TABLE begun AS SELECT id, token FROM idemq.claim('stepped', :n);
	INSERT INTO idemq.steps (job_id, name, queue_id, state, round, token, begun_at, call_until)
		SELECT id, 'call', idemq.queue_id('stepped'), 'open', 0, token, idemq.now(), idemq.now() + interval '1 h' FROM begun;
	SELECT count(idemq.enqueue('finished', to_jsonb(i), key => 'key' || i)) FROM generate_series(1, :n) i;
	SELECT count(idemq.commit(id, token, '1')) FROM idemq.claim('finished', :n);
	SELECT count(idemq.send_event('stepped', 'event ' || i, '1')) FROM generate_series(1, :n) i;
	-- Groups of two.
	SELECT count(idemq.enqueue(q, '1', group_key => 'g' || i / 2)) FROM unnest('{grouped,several}'::text[]) q, generate_series(1, :n) i;
	SELECT count(*) FROM unnest('{grouped,several}'::text[]) q, LATERAL idemq.claim(q, :n / 4);
	-- What is held back: most groups of a queue, and many queues.
	INSERT INTO idemq_internal.hold_entries (queue_id, group_key, began_at, until, job_id, token, held_at)
		SELECT idemq.queue_id('several'), 'g' || i / 2, idemq.now(), idemq.now() + interval '1 h', i, 1, idemq.now() FROM generate_series(20, :n) i
		UNION ALL SELECT idemq.queue_id('queue' || i), NULL, idemq.now(), idemq.now() + interval '1 h', i, 1, idemq.now() FROM generate_series(1, :n / 5) i;
	-- Settings of all sorts.
	INSERT INTO idemq_internal.schedule_entries (name, queue_id, cron, time_zone, payload, priority, created_by, created_at, done_until)
		SELECT 'schedule ' || i, idemq.queue_id('queue' || i), '0 0 1 1 *', 'UTC', '1', 4, current_user, idemq.now(), idemq.now() FROM generate_series(1, :n / 5) i;
	SELECT idemq.create_topic('topic');
	SELECT count(idemq.bind_topic('topic.#', 'queue' || i)) FROM generate_series(1, :n / 5) i;
	INSERT INTO idemq_internal.worker_entries SELECT 10, gen_random_uuid(), 'w' || i, ARRAY[(SELECT min(queue_id) FROM idemq.queues)], 'p', '1', 'h',
		idemq.now(), idemq.now(), 1, 0, '{}', 0, NULL, NULL, false FROM generate_series(1, :n / 5) i;
	INSERT INTO idemq_internal.history_steps SELECT 10, i, q.queue_id, date_trunc('minute', idemq.now()) - i * interval '1 min' / 6, 1, 1, 1, 1, 1, NULL, 1, 1, 1, 1, 1, 1, 1
		FROM idemq.queues q, generate_series(1, 5) i;
	INSERT INTO idemq_internal.history_steps SELECT 10, i, 0, date_trunc('minute', idemq.now()) - i * interval '1 min' / 6, 1, 1, 1, 1, 1, NULL, 1, 1, 1, 1, 1, 1, 1
		FROM generate_series(1, 300) i;
	INSERT INTO idemq.audit (at, session_role, role, action, queue_id, queue) SELECT idemq.now(), 'r', 'r', 'alter_queue', 1, 'x' FROM generate_series(1, :n);
};
# By DELETE, and the tables keep their pages: ANALYZE finds pages without rows.
my $empty = q{
	DELETE FROM idemq.jobs;
	DELETE FROM idemq.queues WHERE name <> 'q';
	DELETE FROM idemq.attempts; DELETE FROM idemq.steps; DELETE FROM idemq.events; DELETE FROM idemq.dependencies; DELETE FROM idemq.children;
	DELETE FROM idemq.audit; DELETE FROM idemq_internal.history_steps; DELETE FROM idemq_internal.schedule_entries; DELETE FROM idemq_internal.worker_entries;
	DELETE FROM idemq_internal.topic_binding_entries; DELETE FROM idemq_internal.topic_entries;
};
my $tables = join ', ', split /\n/, sql($node, q{SELECT c.oid::regclass FROM pg_class c WHERE relkind = 'r' AND relnamespace IN ('idemq'::regnamespace, 'idemq_internal'::regnamespace)});

# ---- What is run, each in a session and a transaction of its own

my $join = q{(SELECT id FROM chosen WHERE what = 'join')};

my $views = q{SELECT relname FROM pg_class WHERE relkind = 'v' AND relnamespace = 'idemq'::regnamespace};

# Those of the web page, without the charts, which read one view, and with these values in place of parameters.
sub of_page
{
	my %constants = (PAGE => 50, FLOW => 10000, EDGES => 5000, FAILED => 5000);
	my %values = (flow => $join, flowJobs => $join, flowOthers => $join, errors => 'NULL', queue => "'dead'", audit => 'NULL', holds => "'several'",
		jobByKey => "'key 1'", queuesNamed => "'queue1'", keysFrom => "'key'", kindsNamed => "'k'", errorsOfQueue => "'dead'", healedOfQueue => "idemq.queue_id('dead')",
		workersOfQueue => "'dead'", servedBy => "idemq.queue_id('dead')",
		newestEdges => 'NULL', flowBrief => $join, flowRoot => "ARRAY[$join]", queuesRefused => "'{dead,join}'",
		# By parameter: a queue, and a fingerprint or two times.
		failedJobs => "idemq.queue_id('dead')", firstRetried => 'NULL',
		cause => ["'dead'", "'0'"], deadOfCause => ["'dead'", "'0'"], errorsWithin => ['NULL', "(now() - interval '1 h')", 'now()'],
		schedule => "'schedule 1'", nextTicks => [ "'0 3 * * *'", "'UTC'" ], pastTicks => [ "'0 3 * * *'", "'UTC'", "(now() - interval '1 day')" ], scheduleJobs => [ "'finished'", "'key1'", "'key2'" ],
		causeWorkers => "ARRAY(SELECT id FROM idemq.job_list WHERE queue = 'dead')");
	my $source = slurp_file("$FindBin::RealBin/../../ui/src/queries.mjs");
	my %found;

	while ($source =~ /^export const (\w+) = `(.*?)`;$/msg)
	{
		my ($name, $sql) = ($1, $2);
		$sql =~ s/\$\{(PAGE|FLOW|EDGES|FAILED)\}/$constants{$1}/g;
		next if $name =~ /^history/ || $sql =~ /\$\{/;
		$sql =~ s/\$(\d+)/ref $values{$name} ? $values{$name}[ $1 - 1 ] : $values{$name}/ge;
		$found{"page: $name"} = $sql;
	}
	return %found;
}
my %page = of_page();
is(scalar(grep { exists $page{"page: $_"} } qw(overview errors schedules runningJobs workers handlers unattended flow flowJobs flowOthers audit holds)), 12, 'the statements of the page are known');

my %statements = (
	%page,
	map({ +"view $_" => "SELECT * FROM idemq.$_" } split /\n/, sql($node, $views)),
	map({ my $what = $_; map({ +"$_($what)" => "SELECT * FROM idemq.$_((SELECT id FROM chosen WHERE what = '$what'), 100000)" } qw(flow_ids flow flow_jobs)) } qw(join fan cancelled)),
	'check()' => 'SELECT * FROM idemq.check()',
	'report()' => 'SELECT * FROM idemq.report()',
	'recount()' => 'SELECT idemq.recount()',
	'prometheus_text()' => 'SELECT idemq.prometheus_text()',
	'why(join)' => "SELECT idemq.why(id) FROM chosen WHERE what = 'join'",
	'why of many' => 'SELECT count(idemq.why(id)) FROM idemq.jobs WHERE id % 10 = 0',
	'parents(join)' => "SELECT count(*) FROM chosen, LATERAL idemq.parents(id) WHERE what = 'join'",
	'redrive' => "SELECT idemq.redrive('dead')",
	'redrive by error' => "SELECT idemq.redrive('dead', error => 'error 1%')",
	'claims of a queue of which most groups are held back' => "SELECT count(*) FROM idemq.claim('several', $n)",
	'resume' => "SELECT idemq.resume('several')",
	'retry_many' => "SELECT count(*) FROM idemq.retry_many(ARRAY(SELECT id FROM idemq.job_list WHERE queue = 'dead'))",
	'cancel_many' => "SELECT count(*) FROM idemq.cancel_many(ARRAY(SELECT id FROM idemq.job_list WHERE queue = 'fan'))",
	'cancel_matching' => "SELECT idemq.cancel_matching('running', key_prefix => 'key')",
	'cancel_matching of a group' => "SELECT idemq.cancel_matching('grouped', group_key => 'g3')",
	'cancel of a parent, then its children' => "SELECT idemq.cancel(id) FROM chosen WHERE what = 'fan'; SELECT count(*) FROM idemq.claim('fan', 1000)",
	'commit of a parent, then its children' => "SELECT idemq.commit_once(id) FROM chosen WHERE what = 'fan'; SELECT count(*) FROM idemq.claim('fan', $n)",
	'commit of all parents, then their child' => "SELECT count(idemq.commit_once(id)) FROM idemq.job_list WHERE queue = 'parents' AND payload = '1'; SELECT idemq.claim_job(id) FROM chosen WHERE what = 'join'",
	'commit_many' => "SELECT count(*) FROM idemq.commit_many(ARRAY(SELECT id FROM idemq.job_list WHERE queue = 'running'), ARRAY(SELECT token FROM idemq.jobs WHERE queue_id = idemq.queue_id('running') ORDER BY id))",
	'enqueue_graph' => "SELECT count(*) FROM idemq.enqueue_graph((SELECT jsonb_agg(jsonb_build_object('name', i::text, 'queue', 'q', 'payload', 1, 'depends_on', CASE WHEN i > 1 THEN jsonb_build_array((i - 1)::text) ELSE '[]' END)) FROM generate_series(1, $n) i))",
	'publish' => "SELECT * FROM idemq.publish('topic.a', '1')",
	'send_event' => "SELECT count(idemq.send_event('stepped', 'event x' || i, '1')) FROM generate_series(1, 100) i",
	'unschedule' => "SELECT count(idemq.unschedule('schedule ' || i)) FROM generate_series(1, 50) i",
	'purge of parents' => "SELECT idemq.purge('parents')",
	'purge of children' => "SELECT idemq.purge('fan')",
	'purge of what has steps' => "SELECT idemq.purge('stepped')",
	'drop_queue of parents' => "SELECT idemq.drop_queue('parents', force => true)",
	'drop_queue of what has steps' => "SELECT idemq.drop_queue('stepped', force => true)",
	'row of a parent is deleted' => "DELETE FROM idemq.jobs WHERE id = (SELECT id FROM chosen WHERE what = 'fan')",
	'rows of all children are deleted' => "DELETE FROM idemq.jobs WHERE queue_id = idemq.queue_id('fan')",
);

# The rows that the nodes of a plan have handled: of each, those that it returned and those that it removed, in all its loops.
sub work
{
	my ($plan) = @_;
	my ($work, $loops) = (0, 0);

	while ($plan =~ /\(actual rows=([\d.]+) loops=(\d+)\)|Rows Removed by [^:]+: (\d+)/g)
	{
		$loops = $2 if defined $2;
		$work += ($1 // $3) * $loops;
	}
	return $work;
}

my $explained = "LOAD 'auto_explain'; SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off;
	SET auto_explain.log_format = text; SET auto_explain.log_nested_statements = on; SET auto_explain.log_level = notice; SET client_min_messages = notice;";

# What each statement does in a database: [rows, the plan with the most work].
sub measured
{
	my ($db) = @_;
	my @names = sort keys %statements;
	my ($answers, $said) = ('', '');

	$node->psql($db, join('', map { "\\c\n$explained\n\\warn STATEMENT $_\nBEGIN; $statements{$_}; ROLLBACK;\n" } @names),
		on_error_stop => 1, stdout => \$answers, stderr => \$said);
	die "$db: $1" if $said =~ /(ERROR: .*)/;

	my (undef, %plans) = split /(?:^|: )STATEMENT (.*)\n/m, $said;
	die "$db: not all statements ran" if keys %plans != @names;
	return map { $_ => most_work($plans{$_}) } @names;
}

sub most_work
{
	my (undef, @plans) = split /^.*NOTICE:\s+duration: /m, $_[0];
	my ($sum, $most, $worst) = (0, -1, '');

	foreach my $plan (@plans)
	{
		my $work = work($plan);
		$sum += $work;
		($most, $worst) = ($work, $plan) if $work > $most;
	}
	return [ $sum, $worst ];
}

sub filled
{
	my ($db, $how) = @_;
	sql($node, "CREATE DATABASE $db");
	sql($node, 'CREATE EXTENSION idemq; SELECT idemq.create_queue(\'q\')', $db);
	(my $sql = $fill) =~ s/:n\b/$n/g;
	if ($how eq 'emptied')
	{
		foreach (1, 2)
		{
			sql($node, $sql, $db);
			sql($node, $empty, $db);
		}
		# Nothing is left to read in the table for an index-only scan, so that a plan may prefer one of a whole index.
		sql($node, "VACUUM (TRUNCATE off, ANALYZE) $tables", $db);
	}
	sql($node, $sql, $db);
	sql($node, "ANALYZE $tables", $db) if $how eq 'full';
	return $db;
}

my @how = qw(full emptied never);
my %done = map { $_ => { measured(filled("plans_$_", $_)) } } @how;

# So many rows for each, of which there are n.
my %bound = (
	'prometheus_text()' => 750,
	'view prometheus' => 700,
	'check()' => 400,
	'report()' => 150,
	'view workers' => 5,
	'page: workers' => 8,
	# For each failed job, the queues of this server, which are too few for an index.
	map { ("page: $_" => 110) } qw(failedJobs errorsWithin deadOfCause),
);
foreach my $name (sort keys %statements)
{
	my %work = map { $_ => $done{$_}{$name}[0] } @how;

	note sprintf '%-40s full %7d, emptied %7d (%.1f), never %7d (%.1f)', $name, map { $work{$_}, $_ eq 'full' ? () : $work{$_} / ($work{full} || 1) } @how;
	foreach my $how (grep { $_ ne 'full' } @how)
	{
		ok($work{$how} <= 3 * $work{full} + 2 * $n, "$name: rows with tables $how, $work{$how}, and with fresh statistics, $work{full}")
		  or diag($done{$how}{$name}[1]);
	}
	cmp_ok($work{full}, '<=', ($bound{$name} // 60) * $n, "$name: and that is not the square of anything")
	  or diag($done{full}{$name}[1]);
}

# ---- Pages: an index that is read whole for each row returns few rows of it.  VACUUM makes an index-only scan cheap

my $many = 4_000;
my $large = "SELECT idemq.create_queue('large'); SELECT count(*) FROM idemq.enqueue_many('large', array_fill('1'::jsonb, ARRAY[$many]));
	SELECT id FROM idemq.enqueue('large', '2', depends_on => ARRAY(SELECT id FROM idemq.job_list WHERE queue = 'large'));";
sql($node, 'CREATE DATABASE pages');
sql($node, "CREATE EXTENSION idemq; $large DELETE FROM idemq.jobs; DELETE FROM idemq.queues", 'pages');
sql($node, "VACUUM ANALYZE $tables", 'pages');
sql($node, $large, 'pages');

sub pages
{
	my ($call) = @_;

	return sql($node, "BEGIN; EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) $call; ROLLBACK", 'pages') =~ /Buffers: shared hit=(\d+)(?: read=(\d+))?/ ? $1 + ($2 // 0) : undef;
}

my @calls = ((map { "SELECT count(*) FROM idemq.$_((SELECT max(id) FROM idemq.jobs), 100000)" } qw(flow_ids flow flow_jobs)),
	"SELECT idemq.purge('large')");
my @emptied = map { pages($_) } @calls;
sql($node, "ANALYZE $tables", 'pages');
foreach my $i (0 .. $#calls)
{
	my $fresh = pages($calls[$i]);

	cmp_ok($emptied[$i], '<=', 3 * $fresh, "$calls[$i]: pages with tables emptied, and with fresh statistics, $fresh");
	cmp_ok($fresh, '<=', 100 * $many, 'and that is some for each job');
}

# ---- Statistics are replaced only below a hundred rows in more pages than rows (src/hooks/row_estimates.c)

# The number of rows that the planner expects in idemq.jobs.
sub expected_rows { return sql($node, 'EXPLAIN SELECT FROM idemq.jobs', 'pages') =~ /rows=(\d+)/ ? $1 : undef }

sql($node, 'DELETE FROM idemq.dependencies; DELETE FROM idemq.children; DELETE FROM idemq.jobs', 'pages');
sql($node, "VACUUM ANALYZE $tables; SELECT count(*) FROM idemq.enqueue_many('large', array_fill(to_jsonb(repeat('x', 1500)), ARRAY[2000]))", 'pages');
cmp_ok(expected_rows(), '>=', 1000, 'a table that was empty when it was analyzed is taken for full');
foreach my $rows (150, 50)
{
	sql($node, "DELETE FROM idemq.jobs WHERE id NOT IN (SELECT id FROM idemq.jobs ORDER BY md5(id::text) LIMIT $rows)", 'pages');
	sql($node, 'VACUUM ANALYZE idemq.jobs', 'pages');
	is_sql($node, "SELECT relpages > $rows FROM pg_class WHERE oid = 'idemq.jobs'::regclass", 't', "$rows rows in more pages", 'pages');
	cmp_ok(expected_rows(), $rows >= 100 ? '<=' : '>=', $rows >= 100 ? 2 * $rows : 1000, "$rows rows are " . ($rows >= 100 ? 'trusted' : 'not'));
}
$node->stop;
done_testing();
