# The adapter and the program of doc/usage/rails.md, as they are on that page, with the Rails of this machine: what perform_later adds, and
# what becomes of jobs that fail, retry, are discarded and die.
# slow: needs Ruby on Rails
# at least 31 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use File::Path qw(make_path);
use Idemq;
use PostgreSQL::Test::Utils;
use Runner;
use Test::More;

plan skip_all => 'no Rails' if system(q(ruby -e 'require "rails"; require "active_job"; require "active_record"; require "pg"' >/dev/null 2>&1));

my $app = "$PostgreSQL::Test::Utils::tmp_check/shop";
my $page = slurp_file("$ENV{IDEMQ_SOURCE}/doc/usage/rails.md");
my @programs = ('lib/active_job/queue_adapters/idemq_adapter.rb', 'bin/idemq');

make_path(map { "$app/$_" } qw(bin config lib/active_job/queue_adapters));
foreach my $name (@programs)
{
	$page =~ /^```ruby\n(# \Q$name\E: .*?)^```/ms or die "$name is not on the page";
	append_to_file("$app/$name", $1);
}
is(scalar(() = $page =~ /^```ruby$/mg), @programs + 1, 'the page has these programs, and an example');
system_or_bail('cp', "$FindBin::RealBin/rails/environment.rb", "$app/config");
system_or_bail('cp', "$FindBin::RealBin/rails/producer.rb", $app);

my $node = new_server('rails', 'idemq.worker' => 'on');
sql($node, q[
	SELECT idemq.create_queue(name, lease => '1 h', retry_base => '1 h') FROM unnest(ARRAY['default', 'other']) name;
	CREATE TABLE marks (id bigserial PRIMARY KEY, what text)]);
# Rails 6.1 does not read the port of a socket from the URL.
local @ENV{qw(DATABASE_URL PGHOST PGPORT PGUSER)} = ('postgresql:///postgres', $node->host, $node->port, scalar getpwuid($>));
my ($out, $err) = run_command([ 'ruby', "$app/producer.rb" ]);
my %said = $out =~ /^(\w+) (\S+)$/mg;
is($err, '', 'the producer has no errors');
note 'Rails ' . qx(ruby -e 'require "rails"; puts Rails.version');

# Selects of the jobs of a class.
sub jobs { my ($columns, $where) = @_; return "SELECT $columns FROM idemq.jobs WHERE $where" }

like($said{rolled_back}, qr/^\d+$/, 'provider_job_id is the id');
is_sql($node, jobs('count(*)', "id = $said{rolled_back}"), '0', 'perform_later is rolled back with its transaction');
is_sql($node, jobs('count(*)', q[payload #>> '{arguments,0}' = 'rolled back to a savepoint']), '0', 'also with a savepoint');
is_sql($node, jobs('count(*)', q[payload #>> '{arguments,0}' = 'committed' AND status = 'pending']), '1', 'and committed with it');
is_sql($node, jobs(q[idemq.queue_name(queue_id), priority, kind, key, payload #>> '{arguments,0}', ready_at - enqueued_at BETWEEN '59 min' AND '61 min'], "id = $said{id}"),
	"other|2|MarkJob|$said{job_id}/0|é|t", 'set(wait:, priority:, queue:)');
is_sql($node, jobs('priority, ready_at = to_timestamp(4102444800)', q[payload #>> '{arguments,0}' = 'later']), '4|t', 'set(wait_until:)');
is("$said{no_queue} $said{priority}", 'IQ005 22023', 'a queue that does not exist, and a priority out of range');
is("$said{all} $said{ids}", 'true 1000', 'perform_all_later: each job knows its id');
is_sql($node, jobs(q[idemq.queue_name(queue_id), count(*), count(*) FILTER (WHERE ready_at = to_timestamp(4102444800))], q[payload #>> '{arguments,0}' LIKE 'many %' GROUP BY 1 ORDER BY 1]),
	"default|500|0\nother|500|1", 'perform_all_later: their queues and times, each once');
is("$said{stale} $said{current} $said{completed}", 'IQ001 none IQ006', 'a retry is refused if the attempt has lost its job, or has completed it');
is_sql($node, q[SELECT status, payload ->> 'executions' FROM idemq.jobs WHERE queue_id = idemq.queue_id('stale') ORDER BY id], "completed|0\npending|1",
	'otherwise it takes the place of the job');

# The jobs that are ready, and those that these enqueue.
my ($status, $log) = ended(start_runner($node->connstr('postgres'), '--once', '-j', 2, '-q', 'default', '-q', 'other', '--lines', '--', 'ruby', "$app/bin/idemq"));
is($status, 0, 'idemq-work runs the jobs') or diag $log;
is_sql($node, jobs('payload #>> $${arguments,0}$$, status', q[kind = 'DyingJob' ORDER BY id]), "unsafe|retrying\nsafe|completed", 'programs have died');
sql($node, q[SELECT idemq.retry(id) FROM idemq.jobs WHERE kind = 'DyingJob' AND status = 'retrying']);
($status) = ended(start_runner($node->connstr('postgres'), '--once', '-q', 'default', '--lines', '--', 'ruby', "$app/bin/idemq"));
is($status, 0, 'and again');
is_sql($node, jobs('count(*)', q[kind = 'MarkJob' AND status <> 'completed' AND ready_at <= now()]), '0', 'all jobs that are due are completed');
is_sql($node, q[SELECT count(*), count(DISTINCT what) FROM marks WHERE what LIKE 'many %' OR what = 'committed'], '1000|1000', 'each has run once');
is_sql($node, q[SELECT what = 'mark ' || (SELECT id FROM marks WHERE what = 'a record') FROM marks WHERE what LIKE 'mark %'], 't', 'an argument may be a record');
is_sql($node, q[SELECT what, count(*) FROM marks WHERE what IN ('safe', 'unsafe') GROUP BY 1 ORDER BY 1], "safe|1\nunsafe|2",
	'a program that dies: its changes happen twice, but with Idemq.complete once');
is_sql($node, jobs('status, attempt', q[kind = 'DyingJob' ORDER BY id]), "completed|2\ncompleted|1", 'both jobs are completed');
foreach ([ retried => 3, 'completed' ], [ exhausted => 3, 'retrying' ])
{
	my ($name, $times, $last) = @$_;

	is_sql($node, "SELECT count(DISTINCT what) FROM marks WHERE what LIKE '%$said{$name}'", $times, "retry_on ($name): its executions");
	is_sql($node, q[SELECT string_agg(status::text || ' ' || (payload ->> 'executions'), ', ' ORDER BY id) FROM idemq.jobs WHERE payload ->> 'job_id' = '] . $said{$name} . q['],
		"completed 0, completed 1, $last 2", "retry_on ($name): its jobs");
}
is_sql($node, jobs('status, attempt', q[kind = 'DiscardedJob']), 'completed|1', 'discard_on completes the job');
is_sql($node, jobs(q[status, last_error LIKE 'RuntimeError: it fails: %'], q[kind = 'FailingJob']), 'retrying|t', 'another exception is retried by idemq');
is_sql($node, jobs('status, attempt', q[kind = 'LateJob']), 'completed|1', 'an exception after Idemq.complete changes nothing');
is_sql($node, q[SELECT count(*) FROM marks WHERE what = 'late'], '1', 'nor its effect');
like($log, qr/this": "is no reply/, 'what a job prints goes to the log');
is_sql($node, 'SELECT * FROM idemq.check()', '', 'check');
$node->stop;
done_testing();
