# deploy/compose, as far as it can be tried without a container engine: what the file names is there,
# the page takes the options that it is given, and nginx with that configuration decides who may
# look, under which name, and who is the actor in the audit.  Prometheus, its rules and the exporter
# have the files that test/t/prometheus.pl runs.
# slow: needs nginx and npm; only deploy/ changes what it proves
# at least 37 assertions

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../t/lib";
use Idemq;
use HTTP::Tiny;
use IPC::Run;
use JSON::PP;
use MIME::Base64 qw(encode_base64);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $modules = $ENV{IDEMQ_NODE_MODULES};
plan skip_all => 'no fastify: npm cannot fetch it' unless $modules && -d "$modules/fastify";
plan skip_all => 'no python3-yaml' if system('python3 -c "import yaml" 2>/dev/null') != 0;

my $source = $ENV{IDEMQ_SOURCE};
my $compose = "$source/deploy/compose";
my $tmp = PostgreSQL::Test::Utils::tempdir();

IPC::Run::run([ 'python3', '-c', 'import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))', "$compose/compose.yaml" ], '>', \my $text)
  or die 'compose.yaml is no YAML';
my $file = decode_json($text);
my %services = %{ $file->{services} };
is(join(' ', sort keys %services), 'db exporter grafana page prometheus proxy', 'the services');
my %mounted;
foreach my $name (sort keys %services)
{
	my $service = $services{$name};

	if (my $build = $service->{build})
	{
		ok(-f "$compose/$build->{context}/$build->{dockerfile}", "$name: what it is built of is there");
	}
	foreach (@{ $service->{volumes} // [] })
	{
		my ($from, $to) = split /:/;
		$mounted{"$name:$to"} = $from;
		ok($from =~ m{^\.} ? -f "$compose/$from" : exists $file->{volumes}{$from}, "$name: $from is there");
	}
	ok($_ =~ /^127\.0\.0\.1:\d+:\d+$/, "$name: port $_ is of this machine alone") foreach @{ $service->{ports} // [] };
	my $waits = $service->{depends_on} // [];
	ok(exists $services{$_}, "$name: waits for $_") foreach ref $waits eq 'ARRAY' ? @$waits : sort keys %$waits;
}
is_deeply([ @mounted{ 'prometheus:/etc/prometheus/prometheus.yml', 'prometheus:/etc/prometheus/idemq-rules.yml', 'exporter:/etc/prometheus-sql-exporter.yml' } ],
	[ map { "../prometheus/$_" } qw(prometheus.yml idemq-rules.yml sql-exporter.yml) ], 'figures are gathered by the files that test/t/prometheus.pl runs');
is($services{prometheus}{network_mode}, 'service:exporter', 'Prometheus finds the exporter where that file names it');

# What the exporter's shell makes of its file: one way to the database, and the rest as it was.
my $script = $services{exporter}{command}[2] =~ s/\$\$/\$/gr;
$script =~ s{/etc/prometheus-sql-exporter\.yml}{$source/deploy/prometheus/sql-exporter.yml};
$script =~ s{/tmp/exporter\.yml}{$tmp/exporter.yml}g;
$script =~ s/^exec /: /m;
{
	local $ENV{PGPASSWORD} = 'secret';
	is(system('sh', '-ec', $script), 0, 'the exporter begins');
}
my ($was, $is) = map { slurp_file($_) } "$source/deploy/prometheus/sql-exporter.yml", "$tmp/exporter.yml";
my $address = 'postgres://postgres:secret@db/postgres?sslmode=disable&application_name=sql_exporter';
is($is, $was =~ s{"postgres:///[^"]*"}{"$address"}r, 'with the way to the database of its own');

# Grafana finds Prometheus, and the dashboard.
foreach my $name (qw(datasource dashboards))
{
	IPC::Run::run([ 'python3', '-c', 'import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))', "$compose/grafana-$name.yml" ], '>', \my $json)
	  or die "grafana-$name.yml is no YAML";
	my $settings = decode_json($json);
	is($name eq 'datasource' ? $settings->{datasources}[0]{url} : $settings->{providers}[0]{options}{path},
		$name eq 'datasource' ? 'http://exporter:9090' : '/dashboards', "Grafana's $name");
}
my ($dashboard) = grep { m{^grafana:/dashboards/} } keys %mounted;
ok(decode_json(slurp_file("$compose/$mounted{$dashboard}"))->{panels}, 'the dashboard is one');

# The page with its options, behind nginx with its configuration.
SKIP:
{
	my ($nginx) = grep { -x } '/usr/sbin/nginx';
	skip 'no nginx', 5 unless $nginx;
	my $node = new_server('compose', 'idemq.worker' => 'on');
	sql($node, q{SELECT idemq.create_queue('mail')});
	my $ui = "$tmp/ui";
	system('cp', '-r', "$source/ui", $ui) == 0 or die 'cp';
	system('rm', '-rf', "$ui/node_modules") == 0 or die 'rm';
	symlink $modules, "$ui/node_modules" or die "symlink: $!";
	# Its networks are not those of this machine.
	my @options = map { s/=0\.0\.0\.0$/=127.0.0.1/r =~ s/=172\.31\.43\.0\/24/=127.0.0.1/r } @{ $services{page}{command} };
	my $said = '';
	local @ENV{qw(PGHOST PGPORT PGUSER PGDATABASE)} = ($node->host, $node->port, 'postgres', 'postgres');
	my $page = IPC::Run::start([ 'node', "$ui/bin/idemq-ui.mjs", '--port=0', @options ], '<', \undef, '>', \$said, '2>&1', IPC::Run::timeout(300));
	$page->pump until $said =~ m{(http://\S+)};
	my $direct = $1;

	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $conf = slurp_file("$compose/nginx.conf");
	ok($conf =~ s/listen 4332;/listen 127.0.0.1:$port;/ && $conf =~ s{http://page:4332}{$direct} && $conf =~ s{/etc/nginx/htpasswd}{$compose/htpasswd}, 'the proxy leads to the page');
	$conf =~ s/http \{/join "\n", 'http {', map { "${_}_temp_path $tmp\/$_;" } qw(client_body proxy fastcgi uwsgi scgi)/e;
	append_to_file("$tmp/nginx.conf", "daemon off; pid $tmp/nginx.pid; error_log $tmp/nginx.log;\n$conf");
	my $proxy = IPC::Run::start([ $nginx, '-e', "$tmp/nginx.log", '-p', $tmp, '-c', "$tmp/nginx.conf" ], '<', \undef, '>', \my $out, '2>&1', IPC::Run::timeout(300));
	my $web = HTTP::Tiny->new(default_headers => { Authorization => 'Basic ' . encode_base64('oncall:change-me', ''), 'X-Forwarded-User' => 'boss' });
	my $answer;
	until_true('nginx is there', sub { ($answer = $web->get("http://localhost:$port/confirm?action=pause&queue=mail"))->{status} == 200 });
	is(HTTP::Tiny->new->get("http://localhost:$port/")->{status}, 401, 'who has no password does not look');
	is(HTTP::Tiny->new->get($direct)->{status}, 403, 'nor does who comes past the proxy');
	my ($cookie) = $answer->{headers}{'set-cookie'} =~ /^([^;]+)/;
	my ($csrf) = $answer->{content} =~ /name="csrf" value="([0-9a-f]+)"/;
	like($answer->{content}, qr/signed in as oncall/, 'the page knows who looks');
	$web->post_form("http://localhost:$port/do", [ csrf => $csrf, action => 'pause', queue => 'mail' ], { headers => { Cookie => $cookie, Origin => "http://localhost:$port" } });
	is_sql($node, q{SELECT session_role, actor, action FROM idemq.audit WHERE action = 'pause'}, 'postgres|oncall|pause', 'and the audit, whatever the browser has sent');
	$proxy->signal('QUIT');
	$page->signal('TERM');
	ok($proxy->finish, 'nginx ends');
	ok($page->finish, 'the page ends');
	$node->stop;
}

done_testing();
