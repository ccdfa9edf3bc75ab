# idemq-work --http: what a request has, what its answer decides; endpoints that are not there, hang, lie or
# flood; what happens to a request when its lease or its runner ends.
# at least 238 assertions
# expects in log: \] XX[0-9A-Z]{3} .*canceling the wait for synchronous

use strict;
use warnings FATAL => 'all';

use Digest::SHA qw(hmac_sha256_base64);
use FindBin;
use lib "$FindBin::RealBin/lib";
use Idemq;
use IO::Socket::INET;
use JSON::PP;
use MIME::Base64;
use PostgreSQL::Test::Utils;
use Runner;
use Test::More;

my $tmp = $PostgreSQL::Test::Utils::tmp_check;

if (qx(idemq-work -q q --http ftp://x 2>&1) =~ /without libcurl/)
{
	plan skip_all => 'no libcurl: idemq-work is built without it';
}

my $node = new_server('work_http', 'idemq.worker' => 'on');
# Its sessions can be found, to be cut.
our $dsn = $node->connstr('postgres') . ' application_name=idemq-work';
# A job that fails is tried again in an hour, not in this test.
sql($node, "SELECT idemq.alter_queue('q', retry_base => '1 h', retry_max => '2 h')");
my $endpoint = endpoint('requests');
our $url = "http://127.0.0.1:$endpoint->{at}/jobs?a=b";

sub runner { my (@options) = @_; return start_runner($dsn, '--http', $url, @options) }

# Does what is ready; answers what it said.
sub once
{
	my ($status, $said) = ended(runner('--once', @_));

	is($status, 0, 'the runner ends with 0') or diag $said;
	return $said;
}

sub enqueue
{
	my ($payload, $more) = (@_, '');

	$payload = encode_json($payload) if ref $payload;
	$payload =~ s/'/''/g;
	return sql($node, "SELECT id FROM idemq.enqueue('q', '$payload'$more)");
}

# What the endpoint was sent, in order.
sub requests { my ($of) = (@_, $endpoint); return -e $of->{log} ? map { decode_json($_) } split /\n/, slurp_file($of->{log}) : () }
sub last_request { return (requests(@_))[-1] }
sub cancel { my ($id) = @_; return sql($node, "SELECT idemq.cancel($id)") }

# What a request has.
{
	my $id = enqueue({ result => { a => 1 } }, qq(, key => 'k/1 é', kind => 'mail.sent', headers => '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1", "baggage": "customer=7", "who": "Zoë 𝄞"}'));
	is(once('--timeout', '1000', '--result'), '', 'nothing is said of a success');
	my $sent = last_request();
	my %headers = %{ $sent->{headers} };

	is($sent->{line}, 'POST /jobs?a=b HTTP/1.1', 'a POST to the URL');
	is($sent->{body}, '{"result": {"a": 1}}', 'the payload is the body, as the server writes it');
	is($headers{'content-type'}, 'application/json', 'which is JSON');
	is_sql($node, "SELECT token FROM idemq.jobs WHERE id = $id", $headers{'idemq-token'}, 'the token');
	is("@headers{qw(idemq-queue idemq-id idemq-attempt idemq-max-attempts idemq-kind idemq-key)}", "q $id 1 20 mail.sent k%2F1%20%C3%A9", 'and the rest of the attempt');
	my $claimed = sql($node, "SELECT floor(extract(epoch FROM claimed_at)) FROM idemq.jobs WHERE id = $id");
	ok($headers{'idemq-deadline'} >= $claimed + 999 && $headers{'idemq-deadline'} <= $sent->{time} + 1001, 'and when it will be ended');
	is($headers{'traceparent'}, '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', 'a trace goes on');
	is("@headers{qw(tracestate baggage)}", 'a=1 customer=7', 'with all of its context');
	like($headers{'idemq-headers'}, qr/"Zo\\u00eb \\ud834\\udd1e"/, 'headers are in ASCII');
	like($headers{'idempotency-key'}, qr/^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-a[0-9a-f]{3}-[0-9a-f]{12}$/, 'a key of the effect');
	is(scalar(grep { exists $headers{$_} } qw(expect idemq-checkpoint idemq-left-out webhook-id transfer-encoding)), 0, 'and nothing else');
	is_job($node, $id, 'completed|1|{"a": 1}|', 'the body of 2xx is the result');

	enqueue('1', ", headers => '" . encode_json({ tracestate => "a\r\nX-Evil: 1", baggage => 'b' x 4097, traceparent => '00' }) . "'");
	once();
	is(scalar(grep { exists last_request()->{headers}{$_} } qw(tracestate baggage traceparent x-evil)), 0, 'no trace context that HTTP does not allow');

	# Run again, by the same key.
	sql($node, q(SELECT idemq.enqueue('q', '{"result": {"a": 1}}', key => 'k/1 é', on_duplicate => 'rerun')));
	is(once(), '', 'the same again');
	isnt(last_request()->{headers}{'idempotency-key'}, $headers{'idempotency-key'}, 'is another effect');
	is_job($node, $id, 'completed|1||', 'without --result there is none');

	enqueue('1', ", key => repeat('é', 512)");
	once();
	is(last_request()->{headers}{'idemq-key'}, '%C3%A9' x 512, 'a key as long as can be');

	# A retry has the same key; a large checkpoint and large headers are left out, and named.
	$id = enqueue({ status => 500, body => "it is broken\n" }, ', headers => to_jsonb(repeat($$x$$, 5000))');
	like(once(), qr/attempt 1 of 20: retrying: HTTP 500: it is broken$/, 'a failure is said');
	my $first = last_request()->{headers};
	is($first->{'idemq-left-out'}, 'Idemq-Headers', 'what is too long is left out');
	sql($node, "SELECT idemq.retry($id)");
	once();
	is(last_request()->{headers}{'idempotency-key'}, $first->{'idempotency-key'}, 'each attempt has the same key');
	is(last_request()->{headers}{'idemq-attempt'}, 2, 'of its second attempt');
	is_sql($node, "SELECT details FROM idemq.attempts WHERE job_id = $id ORDER BY token LIMIT 1", '{"http_status": 500}', 'the status is kept');
	cancel($id);

	# What a header cannot hold.
	$id = sql($node, q(SELECT id FROM idemq.enqueue('q', '1', headers => (SELECT to_jsonb(string_agg(chr(i), '')) FROM generate_series(1, 300) i))));
	is(once(), '', 'headers of all characters');
	unlike(last_request()->{headers}{'idemq-headers'}, qr/[^ -~]/, 'are printable');
	is_sql($node, "SELECT headers = '" . last_request()->{headers}{'idemq-headers'} =~ s/'/''/gr . "' FROM idemq.jobs WHERE id = $id", 't', 'and what they were');

	my $checkpointed = enqueue({ status => 503 });
	sql($node, "SELECT id, token FROM idemq.claim_job($checkpointed) \\gset\nSELECT idemq.checkpoint(:id, :token, '{\"at\": \"é\"}'), idemq.release(:id, :token)");
	once();
	is(last_request()->{headers}{'idemq-checkpoint'}, '{"at": "\u00e9"}', 'a checkpoint');
	cancel($checkpointed);
}

# A signature, of the old key and the new one.
{
	my @secrets = ('0123456789abcdef01234567', 'another key of some thirty bytes');
	append_to_file("$tmp/keys", join '', map { 'whsec_' . encode_base64($_, '') . "\n" } @secrets);
	my $id = enqueue('["é"]');
	is(once('--sign-key-file', "$tmp/keys"), '', 'signed');
	my $sent = last_request();
	my ($name, $time, $signature) = @{ $sent->{headers} }{qw(webhook-id webhook-timestamp webhook-signature)};
	is($name, "q.$id.$sent->{headers}{'idemq-token'}", 'webhook-id');
	ok($time >= sql($node, "SELECT floor(extract(epoch FROM claimed_at)) FROM idemq.jobs WHERE id = $id") - 1 && $time <= $sent->{time} + 1, 'webhook-timestamp');
	my $body = $sent->{body};
	utf8::encode($body);
	is($signature, join(' ', map { 'v1,' . hmac_sha256_base64("$name.$time.$body", $_) . '=' } @secrets), 'webhook-signature');
	append_to_file("$tmp/bad_keys", "whsec_short\n");
	like((ended(runner('--sign-key-file', "$tmp/bad_keys")))[1], qr/line 1 of .* is not a key/, 'a key that is none');
}

# The answer decides.
{
	my $id;
	foreach (
		[ { status => 201, body => 'not json' }, 'completed|1||', qr/the answer is not a valid result: committed without a result/, 'a body that is no JSON' ],
		[ { status => 204, body => '' }, 'completed|1||', qr/^$/, 'status 204' ],
		[ { body => '[' . '1,' x 700_000 . '1]' }, 'completed|1||', qr/the answer is longer than --max-output: committed without/, 'a result that is too long' ],
		[ { body => "\"\xff\"" }, 'completed|1||', qr/not a valid result: committed without a result/, 'a result that is no text' ],
		[ { body => '"%0"' }, 'completed|1||', qr/contains a NUL byte: committed without/, 'a result with a NUL' ],
		[ { status => 422, body => "no such%0 \xffcustomer" }, 'dead|1||HTTP 422: no such? ?customer', qr/: dead: /, 'status 422' ],
		[ { status => 500, headers => ['Idemq-Dead: true'] }, 'dead|1||HTTP 500: "%s"', qr/: dead: /, 'Idemq-Dead' ],
		[ { status => 302, headers => ["Location: /elsewhere"] }, 'retrying|1||HTTP 302: "%s"', qr/: retrying: /, 'a redirect' ],
		(map { [ { status => $_ }, "retrying|1||HTTP $_: \"%s\"", qr/: retrying: /, "status $_" ] } 400, 401, 403, 404, 429, 503),
		[ { status => 500, body => 'x' x 100_000 }, 'retrying|1||HTTP 500: ' . 'x' x 8192, qr/: retrying: /, 'a long error' ],
		[ { status => 500, headers => [ 'Idemq-Dead: no', 'Idemq-Retry-In: 5min' ] }, 'retrying|1||HTTP 500: "%s"', qr/: retrying: /, 'Idemq-Retry-In' ])
	{
		my ($payload, $expected, $said, $name) = @$_;
		my $before = requests();

		$id = enqueue($payload);
		like(once('--result'), $said, "$name: said");
		is_job($node, $id, $expected =~ s/%s/$id/r, $name);
		is(scalar(requests()), $before + 1, "$name: one request");
		is_sql($node, "SELECT ready_at BETWEEN now() + '4 min' AND now() + '6 min' FROM idemq.jobs WHERE id = $id", 't', 'the delay is that of the answer') if $name eq 'Idemq-Retry-In';
		cancel($id);
	}
}

# A provider that asks for a pause with 429: nothing counts, and no worker starts another job of the group, or of the queue.
{
	my $held = "SELECT scope, group_key, job_id FROM idemq.holds WHERE queue = 'q' ORDER BY 1, 2";
	my $id = enqueue({ status => 429, headers => ['Retry-After: 1800'] });
	my $other = enqueue('1');
	my $before = requests();

	like(once('-v'), qr/q $id: released/, '429 with Retry-After');
	is_job($node, $id, 'pending|0||', 'nothing counts');
	is_sql($node, "SELECT ready_at > now() + '25 min' FROM idemq.jobs WHERE id = $id", 't', 'later');
	is_sql($node, $held, "queue||$id", 'the queue is held back');
	is_job($node, $other, 'pending|0||', 'the others wait');
	is(scalar(requests()), $before + 1, 'there was one request');
	is_sql($node, "SELECT count(*) FROM idemq.claim('q')", 0, 'no worker gets one');
	sql($node, "SELECT idemq.resume('q')");
	once();
	is_job($node, $other, 'completed|1||', 'until the hold is over');
	cancel($id);

	# Of a job with a group, its group; the others go on.
	$id = enqueue({ status => 429, headers => ['Retry-After: 1800'] }, ", group_key => 'a', priority => 0");
	$other = enqueue('1', ", group_key => 'b'");
	once();
	is_sql($node, $held, "group|a|$id", 'the group is held back');
	is_job($node, $other, 'completed|1||', 'another group goes on');
	sql($node, "SELECT idemq.resume('q'), idemq.retry($id)");
	once('--hold=queue');
	is_sql($node, $held, "queue||$id", '--hold=queue holds back the queue');
	sql($node, "SELECT idemq.resume('q')");
	cancel($id);
	$id = enqueue({ status => 429, headers => ['Retry-After: 1800'] });
	like((ended(runner('--once', '--hold=group')))[1], qr/q $id: could not hold back other jobs: .*has no group/, '--hold=group of a job without a group');
	is_sql($node, $held, '', 'holds nothing back');
	is_job($node, $id, 'pending|0||', 'and the attempt does not count');
	cancel($id);

	# A queue that allows less: the others wait as long as it does.  One that allows none.
	foreach my $most ('10 min', '0')
	{
		sql($node, "SELECT idemq.alter_queue('q', max_hold_back => '$most')");
		$id = enqueue({ status => 429, headers => ['Retry-After: 1800'] });
		my $said = (ended(runner('--once')))[1];

		$most eq '0' ? like($said, qr/could not hold back other jobs: .*does not allow/, "$most: it says so") : is($said, '', "$most: nothing is said");
		is_sql($node, "SELECT count(*) FROM idemq.holds WHERE until < now() + '11 min'", $most eq '0' ? 0 : 1, "$most: held back as long as the queue allows");
		is_sql($node, "SELECT attempt = 0 AND ready_at > now() + '25 min' FROM idemq.jobs WHERE id = $id", 't', "$most: the job waits as long as was asked");
		sql($node, "SELECT idemq.resume('q')");
		cancel($id);
	}

	# A hundred times in a row; then it counts.  So too if the server refuses the hold.
	foreach my $most ('0', '1 h')
	{
		sql($node, "SELECT idemq.alter_queue('q', max_hold_back => '$most')");
		$id = enqueue({ status => 429, headers => ['Retry-After: 1800'] });
		sql($node, "INSERT INTO idemq.attempts (job_id, token, queue_id, attempt, ended_at, outcome)
			SELECT $id, n, idemq.queue_id('q'), 1, now(), 'released' FROM generate_series(1, 99) n");
		ended(runner('--once'));
		is_job($node, $id, 'pending|0||', "$most: the hundredth time");
		sql($node, "SELECT idemq.resume('q'), idemq.retry($id)");
		like((ended(runner('--once')))[1], qr/q $id: attempt 1 of 20: retrying: HTTP 429/, "$most: then it counts");
		is_job($node, $id, "retrying|1||HTTP 429: \"$id\"", "$most: as a failure");
		is_sql($node, "SELECT ready_at > now() + '25 min' FROM idemq.jobs WHERE id = $id", 't', "$most: and waits as long as was asked");
		sql($node, "SELECT idemq.resume('q')");
		cancel($id);
	}
	like((ended(runner('--hold=all')))[1], qr/--hold requires group, queue or none, not "all"/, 'a scope that is none');
}

# An endpoint that is busy, without a hold: nothing counts, and no job goes there for a while; but not for ever.
{
	my $id = enqueue({ status => 429, headers => ['Retry-After: 3600'] });
	my $other = enqueue('1');
	my $before = requests();
	my $runner = runner('-v', '--hold=none');

	until_said($runner, qr/q $id: released/);
	is_job($node, $id, 'pending|0||', '429 with Retry-After');
	is_sql($node, "SELECT ready_at > now() + '50 min' FROM idemq.jobs WHERE id = $id", 't', 'later');
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'the runner ends');
	is_job($node, $other, 'pending|0||', 'the others wait as well');
	is(scalar(requests()), $before + 1, 'there was one request');
	cancel($other);

	sql($node, "UPDATE idemq.jobs SET payload = jsonb_set(payload, '{headers}', '[\"Retry-After: Fri, 31 Dec 9999 23:59:59 GMT\"]') WHERE id = $id; SELECT idemq.retry($id)");
	$runner = runner('-v', '--hold=none');
	until_said($runner, qr/q $id: released/);
	kill 'TERM', $runner->{pid};
	ended($runner);
	is_sql($node, "SELECT ready_at BETWEEN now() + '110 min' AND now() + '130 min' FROM idemq.jobs WHERE id = $id", 't', 'a date, and at most retry_max');

	for (1 .. 8) { sql($node, "SELECT idemq.retry($id); SELECT idemq.release(id, token) FROM idemq.claim_job($id)") }
	is_sql($node, 'SELECT count(*) FROM idemq.holds', 0, '--hold=none holds nothing back');
	sql($node, "SELECT idemq.retry($id)");
	$runner = runner('-v', '--hold=none');
	until_said($runner, qr/q $id: attempt 1 of 20: retrying: HTTP 429/);
	kill 'TERM', $runner->{pid};
	ended($runner);
	is_sql($node, "SELECT j.status, j.attempt, count(a.*) FILTER (WHERE outcome = 'released') FROM idemq.jobs j JOIN idemq.attempts a ON job_id = id WHERE id = $id GROUP BY 1, 2", 'retrying|1|10', 'ten times; then it counts');
	cancel($id);

	$id = enqueue({ status => 503, headers => ['Retry-After: 3600'] });
	is((ended(runner('--once')))[0], 1, '--once does not wait for that');
	is_job($node, $id, 'pending|0||', 'the job is given back');
	is_sql($node, 'SELECT count(*) FROM idemq.holds', 0, 'a 503 holds nothing back');
	cancel($id);

	# At once, ten times; the failure then waits as the queue says.
	foreach my $now ('0', 'Mon, 23 Nov 2020 10:00:00 GMT', '5 min')
	{
		$before = requests();
		$id = enqueue({ status => 429, headers => ["Retry-After: $now"] });
		ended(runner('--once'));
		is_job($node, $id, "retrying|1||HTTP 429: \"$id\"", "Retry-After: $now");
		is(scalar(requests()), $before + ($now eq '5 min' ? 1 : 11), $now eq '5 min' ? 'is no time' : 'ten times, then it counts');
		is_sql($node, "SELECT ready_at > now() + '20 min' FROM idemq.jobs WHERE id = $id", 't', "and the queue's policy says when");
		cancel($id);
	}
}

# What endpoints do that are broken, or hostile.
{
	my $id;
	foreach (
		# meant to expire
		[ { do => 'nothing' }, 'retrying|1||stopped after 1 s (--timeout)', 'an endpoint that never answers', '--timeout', '1s' ],
		# meant to expire
		[ { do => 'slow' }, 'retrying|1||stopped after 1.5 s (--timeout)', 'that answers a byte a second', '--timeout', '1500ms' ],
		[ { do => 'huge' }, 'completed|1||', 'that answers 10 GB', '--result' ],
		[ { do => 'huge', status => 500 }, 'retrying|1||HTTP 500: ' . '[' x 8192, 'that fails with 10 GB' ],
		[ { do => 'headers' }, "retrying|1||incomplete response: the response's headers are too long", 'that sends 100 headers of 8 kB' ],
		[ { do => 'cut' }, qr/^retrying\|1\|\|incomplete response: .*\b95 bytes\b.*: \[1, 2$/, 'that cuts in the body, in the words of each libcurl', '--result' ],
		[ { do => 'die' }, 'retrying|1||incomplete response: Empty reply from server', 'that dies with each request' ])
	{
		my ($payload, $expected, $name, @options) = @$_;

		$id = enqueue($payload);
		once(@options);
		is_job($node, $id, $expected, $name);
		cancel($id);
	}
	is(last_request()->{headers}{'idemq-id'}, $id, 'which has had it once');
	is(scalar(grep { ($_->{headers}{'idemq-id'} // '') eq $id } requests()), 1, 'libcurl sends none again');

	# On a connection that was used before.
	my ($first, $second) = (enqueue('1'), enqueue({ do => 'die' }));
	once();
	is_job($node, $first, 'completed|1||', 'a connection that is used again');
	is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $second", 'retrying|1', 'and then cut');
	is(scalar(grep { ($_->{headers}{'idemq-id'} // '') eq $second } requests()), 1, 'nor one of these');
	cancel($second);

	# Connected by the kernel; nobody speaks TLS.  The job's own time is shorter than that of a connection.
	my $silent = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1');
	local $url = 'https://127.0.0.1:' . $silent->sockport . '/';
	$id = enqueue('1');
	# meant to expire
	my ($status, $said) = ended(runner('--once', '--timeout', '1s'));
	is($status, 1, 'TLS that hangs');
	like($said, qr/jobs wait until it responds/, 'is an endpoint that is not there');
	is_job($node, $id, 'pending|0||', 'and counts as nothing');
	cancel($id);
	$url = "http://127.0.0.1:$endpoint->{at}/";

	# 16 MB, which the endpoint does not read.
	$id = sql($node, "SELECT id FROM idemq.enqueue('q', to_jsonb(repeat('x', 16000000)), kind => 'early')");
	once('--result', '--timeout', '60s');
	is_job($node, $id, 'completed|1|"early"|', 'that answers before it has read');

	# Every character that a payload can have, and 16 MB of it.
	$id = sql($node, "SELECT id FROM idemq.enqueue('q', (SELECT to_jsonb(repeat(string_agg(chr(i), '' ORDER BY i), 30000)) FROM generate_series(1, 255) i))");
	is(once(), '', '16 MB of all there is');
	is_sql($node, "SELECT status, attempt FROM idemq.jobs WHERE id = $id", 'completed|1', 'are a payload');
	is_sql($node, "SELECT encode(sha256(convert_to(payload::text, 'UTF8')), 'hex') FROM idemq.jobs WHERE id = $id", last_request()->{body}, 'and arrive');
	unlink $endpoint->{log};
}

# An endpoint that is not there: nothing counts, and work goes on when it is back.
{
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	local $url = "http://127.0.0.1:$port/";
	my @ids = map { enqueue('1') } 1 .. 20;
	my ($status, $said) = ended(runner('--once', '-j', '4'));

	is($status, 1, '--once does not wait for an endpoint');
	like($said, qr/^idemq-work: http:.*: .*; jobs wait until it responds\n$/, 'one line says so');
	my $runner = runner('-j', '4');
	until_said($runner, qr/jobs wait until it responds/);
	my $late = endpoint('late', $port);
	is_soon($node, "SELECT count(*) = 20 FROM idemq.jobs WHERE status = 'completed' AND id IN (" . join(',', @ids) . ')', 'they are done when it is back');
	is_sql($node, 'SELECT max(attempt) FROM idemq.jobs WHERE id IN (' . join(',', @ids) . ')', 1, 'no attempt has counted');
	like(slurp_file($runner->{err}), qr/^.*jobs wait until it responds\n.*is responding again after [0-9.]+ s\n$/, 'and another line');

	# It dies, with a connection that could be used again, and comes back.
	$late->{run}->kill_kill;
	my $id = enqueue('1');
	until_said($runner, qr/(jobs wait until it responds.*){2}/s);
	$late = endpoint('late', $port);
	is_soon($node, "SELECT status = 'completed' AND attempt = 1 FROM idemq.jobs WHERE id = $id", 'a job of meanwhile');
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'the runner ends');
	$late->{run}->kill_kill;
}

# A lease that is lost, and a job that commits itself.  A runner that connects again sends its heartbeats at once.
{
	my $cut = "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity WHERE application_name = 'idemq-work'";
	my $id = enqueue({ do => 'nothing' });
	my $runner = runner('--lease', '10min');

	until_true('a request', sub { grep { ($_->{headers}{'idemq-id'} // '') eq $id } requests() });
	is_sql($node, "SELECT idemq.cancel($id)", 'cancelled', 'a job is cancelled');
	sql($node, $cut);
	until_true('its connection is closed', sub { grep { ($_->{closed} // '') eq $id } requests() });
	until_said($runner, qr/^idemq-work: q $id: the job (?:was|is being) cancelled, so the request is being stopped$/m);
	is_job($node, $id, 'cancelled|1||', 'it stays cancelled');

	$id = enqueue({ do => 'wait', gate => "$tmp/committed", status => 500 });
	until_true('a request', sub { grep { ($_->{waits} // '') eq $id } requests() });
	sql($node, "SELECT idemq.commit(id, token, '\"its own\"') FROM idemq.jobs WHERE id = $id");
	my $log = log_end($node);
	sql($node, $cut);
	wait_logged($node, qr/heartbeat_many/, $log);
	open_gate('committed');
	enqueue('1', ", key => 'after'");
	is_soon($node, "SELECT status = 'completed' FROM idemq.job_by_key('q', 'after')", 'the next one');
	is_job($node, $id, 'completed|1|"its own"|', 'what has committed itself is not ended, and has not failed');
	unlike(slurp_file($runner->{err}), qr/q $id/, 'of which nothing is said');

	# A runner asks try_commit whether an attempt that a heartbeat calls stale has committed itself, or is lost.  Here the
	# claim that made it stale is undone meanwhile, and the question must not commit the job.
	unlink "$tmp/committed";
	$id = enqueue({ do => 'wait', gate => "$tmp/committed" });
	until_true('a request', sub { grep { ($_->{waits} // '') eq $id } requests() });
	stop_worker($node);
	kill 'STOP', $runner->{pid};
	# meant to expire
	sql($node, "SELECT idemq.heartbeat(id, token, '1 ms') FROM idemq.jobs WHERE id = $id");
	wait_until($node, "SELECT expires_in < '0' FROM idemq_internal.leases() WHERE job_id = $id");
	my $thief = session($node);
	$thief->query_safe('BEGIN');
	is($thief->query_safe("SELECT id FROM idemq.claim('q')"), $id, 'another has the job, for now');
	sql($node, $cut);
	kill 'CONT', $runner->{pid};
	wait_until($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%try_commit%'");
	$log = log_end($node);
	$thief->query_safe('ROLLBACK');
	leave($thief);
	wait_logged($node, qr/heartbeat_many/, $log);
	is_sql($node, "SELECT status FROM idemq.jobs WHERE id = $id", 'running', 'the attempt goes on, and nothing has committed it');
	kill 'CONT', worker_pid($node);
	open_gate('committed');
	is_soon($node, "SELECT status = 'completed' AND attempt = 1 FROM idemq.jobs WHERE id = $id", 'then it is done');

	# kill -9: another runner, another token.
	unlink "$tmp/committed";
	$id = enqueue({ do => 'wait', gate => "$tmp/committed" });
	until_true('a request', sub { grep { ($_->{waits} // '') eq $id } requests() });
	kill 'KILL', $runner->{pid};
	$runner->{run}->finish;
	open_gate('committed');
	sql($node, "SELECT idemq.revoke_lease($id)");
	is(once('--result'), '', 'after kill -9');
	is_job($node, $id, 'completed|1|"waited"|', 'another runner does it');
	my @tokens = map { $_->{token} } grep { ($_->{waits} // '') eq $id } requests();
	cmp_ok($tokens[1], '>', $tokens[0], 'with a larger token');

	# A drain.
	unlink "$tmp/committed";
	$id = enqueue({ do => 'wait', gate => "$tmp/committed" });
	# meant to expire
	$runner = runner('--grace', '200ms');
	until_true('a request', sub { grep { ($_->{waits} // '') eq $id } requests() });
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'a runner that was told to end');
	is_job($node, $id, 'pending|0||', 'gives back what takes longer than its grace');
	open_gate('committed');
	is(once(), '', 'for the next one');
	is_job($node, $id, 'completed|1||', 'which does it');
}

# Many at a time are committed together; each once.
{
	my $before = requests();
	sql($node, "SELECT idemq.enqueue_many('q', array_agg(to_jsonb(i))) FROM generate_series(1, 500) i");
	is(once('-j', '32', '--result'), '', '500 jobs');
	is_sql($node, "SELECT count(*), sum(attempt) FROM idemq.jobs WHERE status = 'completed' AND result #>> '{}' = id::text AND payload IN (SELECT to_jsonb(i) FROM generate_series(1, 500) i)", '500|500', 'are done, each with its result');
	is(scalar(requests()), $before + 500, 'by one request each');
	cmp_ok(scalar(keys %{ { map { $_->{from} => 1 } (requests())[ -500 .. -1 ] } }), '<=', 40, 'over connections that are used again');

	# One result that the server does not take does not keep back the others.
	sql($node, "SELECT idemq.enqueue('q', jsonb_build_object('body', CASE i WHEN 7 THEN 'nonsense' ELSE i::text END), key => 'mixed-' || i) FROM generate_series(1, 16) i");
	my @said = split /\n/, once('-j', '16', '--result');
	is(scalar(@said), 1, 'one is said to have no result');
	is_sql($node, "SELECT count(*), count(result), sum(attempt) FROM idemq.jobs WHERE key LIKE 'mixed-%' AND status = 'completed'", '16|15|16', 'and all are committed');
}

# An answer to commits and a claim is lost, and the server crashes.
{
	unlink "$tmp/lost";
	my @ids = map { enqueue({ do => 'wait', gate => "$tmp/lost" }) } 1 .. 3;
	my $runner = runner('-v', '-j', '3', '--lease', '10min');
	until_true('three requests', sub { 3 == grep { my $waits = $_->{waits} // ''; grep { $_ eq $waits } @ids } requests() });
	sql($node, "ALTER SYSTEM SET synchronous_standby_names = 'nobody'; SELECT pg_reload_conf()");
	wait_until($node, 'SHOW synchronous_standby_names', 'nobody');
	# Commits wait from when the checkpointer knows of it.
	sql($node, 'CHECKPOINT');
	open_gate('lost');
	my $committing = "FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%commit_many_and_claim%'";
	wait_until($node, "SELECT count(*) = 1 $committing");
	sql($node, "SELECT pg_terminate_backend(pid) $committing");
	sql($node, 'ALTER SYSTEM RESET synchronous_standby_names; SELECT pg_reload_conf()');
	is_soon($node, "SELECT count(*) = 3 FROM idemq.jobs WHERE status = 'completed' AND attempt = 1 AND id IN (" . join(',', @ids) . ')', 'commits whose answer is lost are asked for again');
	until_said($runner, qr/: already_committed$/m);
	unlike(slurp_file($runner->{err}), qr/lost \(/, 'and nothing is lost');
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'the runner ends');

	# The server may crash when it has claimed jobs, and before it says so: those come again when their leases expire.
	# meant to expire
	sql($node, "SELECT idemq.alter_queue('q', retry_base => '1 ms', retry_max => '1 ms')");
	# meant to expire
	$runner = runner('-v', '-j', '3', '--lease', '10s');
	sql($node, "SELECT idemq.enqueue('q', jsonb_build_object('do', 'wait', 'gate', '$tmp/lost', 'i', i), key => 'crash-' || i) FROM generate_series(1, 100) i");
	until_true('some are done', sub { sql($node, "SELECT count(*) > 10 FROM idemq.jobs WHERE key LIKE 'crash-%' AND status = 'completed'") eq 't' });
	crash($node);
	is_soon($node, "SELECT count(*) = 100 FROM idemq.jobs WHERE key LIKE 'crash-%' AND status = 'completed'", 'a crash of the server holds up none for ever');
	kill 'TERM', $runner->{pid};
	is((ended($runner))[0], 0, 'the runner ends');
	sql($node, "SELECT idemq.alter_queue('q', retry_base => '1 h', retry_max => '2 h')");
}

# Through a pooler, which keeps no statement for a client.
SKIP:
{
	skip 'no pgbouncer', 3 unless grep { -x "$_/pgbouncer" } split(/:/, $ENV{PATH});
	my ($start, $dir, $port) = pooler($node, default_pool_size => 3);
	my $pooler = $start->();
	local $dsn = "host=$dir port=$port dbname=postgres";

	sql($node, "SELECT idemq.enqueue('q', to_jsonb(i), key => 'pooled-' || i) FROM generate_series(1, 100) i");
	is(once('-j', '16'), '', '100 jobs through a pooler');
	is_sql($node, "SELECT count(*), sum(attempt) FROM idemq.jobs WHERE key LIKE 'pooled-%' AND status = 'completed'", '100|100', 'are done');
	$pooler->kill_kill;
}

# A socket; TLS.
{
	my $socket = PostgreSQL::Test::Utils::tempdir_short() . '/endpoint';
	my $local = endpoint('local', $socket);
	my $id = enqueue('1');
	local $url = 'http://localhost/x';
	is(once('--unix-socket', $socket), '', 'by a socket');
	is_job($node, $id, 'completed|1||', 'as by a port');
	is(last_request($local)->{headers}{host}, 'localhost', 'with the URL\'s host');
	$local->{run}->kill_kill;

	system_or_bail('openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=localhost', '-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', "$tmp/key", '-out', "$tmp/certificate");
	my $safe = endpoint('safe', '0', "$tmp/certificate", "$tmp/key");
	$url = "https://127.0.0.1:$safe->{at}/";
	$id = enqueue('1');
	my ($status, $said) = ended(runner('--once'));
	is($status, 1, 'a certificate that nobody vouches for');
	like($said, qr/certificate.*; jobs wait/, 'is said');
	is_job($node, $id, 'pending|0||', 'and nothing sent');
	local $ENV{SSL_CERT_FILE} = "$tmp/certificate";
	is(once(), '', 'SSL_CERT_FILE vouches');
	is_job($node, $id, 'completed|1||', 'and the job is done');
	$url = "https://localhost:$safe->{at}/";
	$id = enqueue('1');
	is((ended(runner('--once')))[0], 1, 'a name that the certificate lacks');
	is_job($node, $id, 'pending|0||', 'is refused');
	cancel($id);
	$safe->{run}->kill_kill;

	# No proxy of the environment's.
	local @ENV{qw(http_proxy HTTPS_PROXY ALL_PROXY)} = ('http://127.0.0.1:1') x 3;
	$url = "http://127.0.0.1:$endpoint->{at}/";
	$id = enqueue('1');
	is(once(), '', 'with a proxy in the environment');
	is_job($node, $id, 'completed|1||', 'which is not used');
}
is_sql($node, 'SELECT * FROM idemq.check()', '', 'every invariant holds');
$endpoint->{run}->kill_kill;
done_testing();
